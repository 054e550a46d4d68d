// Verbs of a FakeFabric that make queue pairs and change their states.
#include <cerrno>

#include "fakes/verbs/fake_verbs_objects.h"

namespace dlslime::testing {

namespace {

// Returns the attributes that the kernel demands for a transition; -1 if the
// transition is not allowed.
int required(ibv_qp_state from, ibv_qp_state to) {
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT) {
    return IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  }
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
    return IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) {
    return IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  return to == IBV_QPS_ERR || to == IBV_QPS_RESET ? 0 : -1;
}

bool fits(const FakeDevice& device, const ibv_qp_cap& cap) {
  const auto most = static_cast<uint32_t>(device.maxRequests);
  return cap.max_send_wr <= most && cap.max_recv_wr <= most &&
      cap.max_inline_data <= device.maxInline;
}

} // namespace

int FakePairs::refusal(ibv_context* context, ibv_qp_state state) {
  const auto& refused = FakeFabric::current->refusedPairs_;
  const auto found = refused.find({context->device->name, state});
  return found == refused.end() ? 0 : found->second;
}

ibv_qp* FakePairs::make(ibv_pd* domain, ibv_qp_init_attr* wanted) {
  if (!fits(*of(domain->context).device, wanted->cap) ||
      wanted->qp_type != IBV_QPT_RC) {
    errno = EINVAL;
    return nullptr;
  }
  const auto held = FakeQueues::lock();
  errno = refusal(domain->context, IBV_QPS_RESET);
  if (errno != 0) {
    return nullptr;
  }
  auto made = std::make_unique<FakeFabric::Qp>();
  made->base.context = domain->context;
  made->base.pd = domain;
  made->base.qp_num = FakeFabric::current->nextNumber_++;
  made->base.state = IBV_QPS_RESET;
  made->base.send_cq = wanted->send_cq;
  made->base.recv_cq = wanted->recv_cq;
  made->limits = wanted->cap;
  made->sendCq = &of(wanted->send_cq);
  made->receiveCq = &of(wanted->recv_cq);
  auto* const base = &made->base;
  FakeFabric::current->qps_[base->qp_num] = std::move(made);
  ++FakeFabric::current->live_["qp"];
  return base;
}

int FakePairs::modify(ibv_qp* base, ibv_qp_attr* attributes, int mask) {
  const auto held = FakeQueues::lock();
  auto& qp = of(base);
  const int needed = required(base->state, attributes->qp_state);
  if ((mask & IBV_QP_STATE) == 0 || needed < 0 || (mask & needed) != needed) {
    return EINVAL;
  }
  if (const int error = refusal(base->context, attributes->qp_state)) {
    return error;
  }
  if (attributes->qp_state == IBV_QPS_RTR) {
    qp.attributes.dest_qp_num = attributes->dest_qp_num;
    qp.attributes.path_mtu = attributes->path_mtu;
  }
  if (attributes->qp_state == IBV_QPS_RTS) {
    qp.attributes.rnr_retry = attributes->rnr_retry;
  }
  auto& fabric = *FakeFabric::current;
  fabric.steps_[{base->context->device->name, attributes->qp_state}].push_back(
      *attributes);
  base->state = attributes->qp_state;
  if (base->state == IBV_QPS_ERR) {
    fabric.flush(qp);
  }
  return 0;
}

int FakePairs::destroy(ibv_qp* qp) {
  const auto held = FakeQueues::lock();
  // Waiting completions may still name the queue pair.
  for (auto* const cq : {of(qp).sendCq, of(qp).receiveCq}) {
    std::erase_if(
        cq->entries, [&](const auto& e) { return e.retiring == &of(qp); });
  }
  FakeFabric::current->sending_.erase(qp->qp_num);
  FakeFabric::current->qps_.erase(qp->qp_num);
  --FakeFabric::current->live_["qp"];
  return 0;
}

} // namespace dlslime::testing
