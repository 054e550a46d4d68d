// Verbs of a FakeFabric that post and poll.
#include <algorithm>
#include <cerrno>
#include <climits>

#include "base/relax.h"

#include "fakes/verbs/fake_verbs_objects.h"

namespace dlslime::testing {

std::unique_lock<std::mutex> FakeQueues::lock() {
  // A thread that polls would sleep at nearly each call otherwise, while other
  // threads poll: a NIC has no such lock.
  constexpr int kTries = 1000;
  std::unique_lock<std::mutex> held(
      FakeFabric::current->mutex_, std::defer_lock);
  for (int i = 0; i < kTries && !held.try_lock(); ++i) {
    relaxProcessor();
  }
  if (!held) {
    held.lock();
  }
  return held;
}

int FakeQueues::refused(const char* call) {
  const auto& calls = FakeFabric::current->refusedCalls_;
  const auto found = calls.find(call);
  return found == calls.end() ? 0 : found->second;
}

int FakeQueues::postSend(ibv_qp* base, ibv_send_wr* list, ibv_send_wr** bad) {
  const auto held = lock();
  auto& fabric = *FakeFabric::current;
  auto& qp = of(base);
  ++fabric.doorbells_;
  int left = -1;
  if (fabric.failingPosts_ > 0) {
    --fabric.failingPosts_;
    left = fabric.postTaken_;
  }
  int error = 0;
  for (; list != nullptr; list = list->next) {
    if (left-- == 0) {
      error = fabric.postError_;
    } else if (base->state < IBV_QPS_RTS) {
      error = EINVAL;
    } else if (qp.posted - qp.retired >= qp.limits.max_send_wr) {
      error = ENOMEM;
    } else {
      error = take(qp, *list);
    }
    if (error != 0) {
      *bad = list;
      break;
    }
  }
  fabric.progress(qp);
  return error;
}

int FakeQueues::take(FakeFabric::Qp& qp, const ibv_send_wr& wr) {
  if (wr.num_sge > static_cast<int>(qp.limits.max_send_sge)) {
    return EINVAL;
  }
  FakeFabric::Request request;
  request.request = wr;
  request.segments.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    for (const auto& segment : request.segments) {
      const auto* const from = reinterpret_cast<const std::byte*>(segment.addr);
      request.inlined.insert(
          request.inlined.end(), from, from + segment.length);
    }
    if (request.inlined.size() > qp.limits.max_inline_data) {
      return EINVAL;
    }
  }
  request.index = ++qp.posted;
  auto& fabric = *FakeFabric::current;
  const auto& device = qp.base.context->device->name;
  auto& posted = fabric.posted_[{device, wr.opcode}];
  ++posted.requests;
  posted.bytes += request.bytes();
  const auto slow = fabric.slow_.find(device);
  request.slow = slow != fabric.slow_.end();
  request.delay = request.slow ? slow->second : fabric.someDelay();
  if (const auto held = fabric.holding_.find(device);
      held != fabric.holding_.end() && request.bytes() >= held->second.bytes &&
      held->second.passing-- <= 0) {
    request.delay = INT_MAX;
  }
  qp.sends.push_back(std::move(request));
  fabric.sending_[qp.base.qp_num] = &qp;
  return 0;
}

int FakeQueues::postReceive(
    ibv_qp* base,
    ibv_recv_wr* list,
    ibv_recv_wr** bad) {
  const auto held = lock();
  auto& qp = of(base);
  if (const int error = refused("post_recv")) {
    *bad = list;
    return error;
  }
  for (; list != nullptr; list = list->next) {
    if (qp.receives.size() >= qp.limits.max_recv_wr) {
      *bad = list;
      return ENOMEM;
    }
    qp.receives.push_back(list->wr_id);
  }
  if (base->state == IBV_QPS_ERR) {
    FakeFabric::current->flush(qp);
  }
  return 0;
}

// Calls `change` for the requests of all queue pairs, and carries out the
// requests that are due. With hundreds of queue pairs most have no requests.
template <typename Change>
void FakeQueues::progressAll(const Change& change) {
  auto& fabric = *FakeFabric::current;
  auto sending = fabric.sending_.begin();
  while (sending != fabric.sending_.end()) {
    auto& qp = *sending->second;
    for (auto& request : qp.sends) {
      change(request);
    }
    fabric.progress(qp);
    sending =
        qp.sends.empty() ? fabric.sending_.erase(sending) : std::next(sending);
  }
}

int FakeQueues::poll(ibv_cq* base, int most, ibv_wc* out) {
  const auto held = lock();
  progressAll([](auto& request) { request.delay -= request.delay > 0; });
  auto& cq = of(base);
  int count = 0;
  for (; count < most && !cq.entries.empty(); ++count) {
    const auto& entry = cq.entries.front();
    out[count] = entry.completion;
    if (entry.retiring != nullptr) {
      entry.retiring->retired =
          std::max(entry.retiring->retired, entry.retires);
    }
    cq.entries.pop_front();
  }
  return count;
}

int FakeQueues::arm(ibv_cq* base, int /*solicited*/) {
  const auto held = lock();
  if (const int error = refused("req_notify_cq")) {
    return error;
  }
  of(base).armed = true;
  // A thread about to sleep does not poll: delayed requests complete now.
  FakeFabric::current->unready_.clear();
  const bool anyOrder = FakeFabric::current->mostDelay_ != 0;
  progressAll([&](auto& request) {
    request.delay = request.slow || anyOrder ? 0 : request.delay;
  });
  return 0;
}

} // namespace dlslime::testing
