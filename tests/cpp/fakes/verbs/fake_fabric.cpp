// How a FakeFabric carries out posted requests.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fakes/verbs/fake_verbs_objects.h"

namespace dlslime::testing {

FakeFabric* FakeFabric::current = nullptr;

ibv_gid ipv4Gid(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = a;
  gid.raw[13] = b;
  gid.raw[14] = c;
  gid.raw[15] = d;
  return gid;
}

FakeFabric::FakeFabric(std::vector<FakeDevice> devices)
    : devices_(std::move(devices)) {
  for (const auto& device : devices_) {
    handles_.push_back(std::make_unique<ibv_device>());
    std::strncpy(
        handles_.back()->name,
        device.name.c_str(),
        sizeof(handles_.back()->name) - 1);
  }
  current = this;
  rdma::replaceVerbs(&verbs());
}

FakeFabric::~FakeFabric() {
  rdma::replaceVerbs(nullptr);
  current = nullptr;
}

bool FakeFabric::isCut(const Qp& qp) const {
  const auto found = cut_.find(qp.base.context->device->name);
  return found != cut_.end() && found->second;
}

bool FakeFabric::isDropped(const Qp& qp, const Request& request) const {
  const auto found = dropping_.find(qp.base.context->device->name);
  if (found == dropping_.end()) {
    return false;
  }
  const size_t packet = size_t{128} << qp.attributes.path_mtu;
  return std::min(request.bytes(), packet) > found->second;
}

bool FakeFabric::isUnready(const Qp& target) {
  if (target.receives.empty()) {
    ++withoutReceives_;
    return true;
  }
  auto& left = unready_[target.base.context->device->name];
  left -= left > 0 ? 1 : 0;
  return left > 0;
}

void FakeFabric::progress(Qp& qp) {
  while (!qp.sends.empty() && qp.sends.front().delay == 0) {
    if (qp.base.state == IBV_QPS_ERR) {
      flush(qp);
      return;
    }
    auto& request = qp.sends.front();
    const auto found = qps_.find(qp.attributes.dest_qp_num);
    Qp* const target = found == qps_.end() ? nullptr : found->second.get();
    const bool reached = target != nullptr && !isCut(qp) && !isCut(*target) &&
        !isDropped(qp, request) && !isDropped(*target, request) &&
        target->base.state >= IBV_QPS_RTR && target->base.state <= IBV_QPS_RTS;
    const auto status =
        reached ? transfer(qp, request, *target) : IBV_WC_RETRY_EXC_ERR;
    if (status == IBV_WC_RNR_RETRY_EXC_ERR && qp.attributes.rnr_retry == 7) {
      return; // retried for ever
    }
    if (status != IBV_WC_SUCCESS) {
      fail(qp, request, status);
      return;
    }
    ++requests_[request.request.opcode];
    inlined_ += (request.request.send_flags & IBV_SEND_INLINE) != 0 ? 1 : 0;
    if ((request.request.send_flags & IBV_SEND_SIGNALED) != 0) {
      ++signalled_;
      ibv_wc completion{};
      completion.wr_id = request.request.wr_id;
      completion.qp_num = qp.base.qp_num;
      completion.opcode = request.request.opcode == IBV_WR_RDMA_READ
          ? IBV_WC_RDMA_READ
          : IBV_WC_RDMA_WRITE;
      complete(*qp.sendCq, completion, request.index, &qp);
    }
    qp.sends.pop_front();
  }
}

const FakeFabric::Region* FakeFabric::regionOf(
    uint32_t key,
    ibv_pd* domain,
    const Range& range,
    int access) {
  const auto [at, n] = range;
  const auto found = regions_.find(key);
  if (found == regions_.end()) {
    return nullptr;
  }
  const auto& region = found->second;
  const bool inside = region.domain == domain && at >= region.address &&
      n <= region.size && at - region.address <= region.size - n;
  return inside && (region.access & access) == access ? &region : nullptr;
}

std::set<size_t> FakeFabric::writable() {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::set<size_t> sizes;
  for (const auto& [key, region] : regions_) {
    if ((region.access & IBV_ACCESS_REMOTE_WRITE) != 0) {
      sizes.insert(region.size);
    }
  }
  return sizes;
}

bool FakeFabric::gather(
    const Qp& qp,
    Request& request,
    std::vector<std::byte>& bytes) {
  if ((request.request.send_flags & IBV_SEND_INLINE) != 0) {
    bytes = request.inlined;
    return true;
  }
  for (const auto& segment : request.segments) {
    const auto* const region =
        regionOf(segment.lkey, qp.base.pd, {segment.addr, segment.length}, 0);
    if (region == nullptr) {
      return false;
    }
    const auto* const from = region->at(segment.addr);
    bytes.insert(bytes.end(), from, from + segment.length);
  }
  return true;
}

bool FakeFabric::scatter(
    const Qp& qp,
    Request& request,
    const std::byte* bytes) {
  for (const auto& segment : request.segments) {
    const auto* const region = regionOf(
        segment.lkey,
        qp.base.pd,
        {segment.addr, segment.length},
        IBV_ACCESS_LOCAL_WRITE);
    if (region == nullptr) {
      return false;
    }
    std::memcpy(region->at(segment.addr), bytes, segment.length);
    bytes += segment.length;
  }
  return true;
}

ibv_wc_status FakeFabric::transfer(Qp& qp, Request& request, Qp& target) {
  const auto& wr = request.request;
  const auto at = static_cast<uintptr_t>(wr.wr.rdma.remote_addr);
  if (wr.opcode != IBV_WR_RDMA_WRITE) {
    for (const auto& [to, landing] : std::exchange(qp.unlanded, {})) {
      std::memcpy(to, landing.data(), landing.size());
    }
  }
  if (wr.opcode == IBV_WR_RDMA_READ) {
    const auto* const region = regionOf(
        wr.wr.rdma.rkey,
        target.base.pd,
        {at, request.bytes()},
        IBV_ACCESS_REMOTE_READ);
    if (region == nullptr) {
      return IBV_WC_REM_ACCESS_ERR;
    }
    return scatter(qp, request, region->at(at)) ? IBV_WC_SUCCESS
                                                : IBV_WC_LOC_PROT_ERR;
  }
  const bool immediate = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (!immediate && wr.opcode != IBV_WR_RDMA_WRITE) {
    return IBV_WC_LOC_QP_OP_ERR;
  }
  std::vector<std::byte> bytes;
  if (!gather(qp, request, bytes)) {
    return IBV_WC_LOC_PROT_ERR;
  }
  if (immediate && isUnready(target)) {
    return IBV_WC_RNR_RETRY_EXC_ERR;
  }
  if (!bytes.empty()) {
    const auto* const region = regionOf(
        wr.wr.rdma.rkey,
        target.base.pd,
        {at, bytes.size()},
        IBV_ACCESS_REMOTE_WRITE);
    if (region == nullptr) {
      return IBV_WC_REM_ACCESS_ERR;
    }
    if (!immediate && landingLate_.contains(qp.base.context->device->name)) {
      qp.unlanded.emplace_back(region->at(at), std::move(bytes));
    } else {
      std::memcpy(region->at(at), bytes.data(), bytes.size());
    }
  }
  if (immediate) {
    ibv_wc completion{};
    completion.wr_id = target.receives.front();
    completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    completion.byte_len = static_cast<uint32_t>(bytes.size());
    completion.imm_data = wr.imm_data;
    completion.wc_flags = IBV_WC_WITH_IMM;
    completion.qp_num = target.base.qp_num;
    target.receives.pop_front();
    complete(*target.receiveCq, completion, 0, nullptr);
  }
  return IBV_WC_SUCCESS;
}

void FakeFabric::complete(
    Cq& cq,
    const ibv_wc& completion,
    uint64_t retires,
    Qp* qp) {
  if (cq.entries.size() >= cq.capacity) {
    overflowed_ = true;
    return;
  }
  cq.entries.push_back({completion, qp, retires});
  if (cq.armed && cq.base.channel != nullptr) {
    cq.armed = false;
    const uint64_t one = 1;
    [[maybe_unused]] const auto put =
        write(cq.base.channel->fd, &one, sizeof(one));
  }
}

void FakeFabric::fail(Qp& qp, const Request& request, ibv_wc_status status) {
  ibv_wc completion{};
  completion.wr_id = request.request.wr_id;
  completion.qp_num = qp.base.qp_num;
  completion.status = status;
  const auto index = request.index;
  qp.sends.pop_front(); // ends `request`
  qp.base.state = IBV_QPS_ERR;
  complete(*qp.sendCq, completion, index, &qp);
  flush(qp);
}

void FakeFabric::flush(Qp& qp) {
  ibv_wc completion{};
  completion.qp_num = qp.base.qp_num;
  completion.status = IBV_WC_WR_FLUSH_ERR;
  while (!qp.sends.empty()) {
    completion.wr_id = qp.sends.front().request.wr_id;
    complete(*qp.sendCq, completion, qp.sends.front().index, &qp);
    qp.sends.pop_front();
  }
  for (const auto id : qp.receives) {
    completion.wr_id = id;
    complete(*qp.receiveCq, completion, 0, nullptr);
  }
  qp.receives.clear();
}

} // namespace dlslime::testing
