#include "transports/rdma/rail/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "transports/rdma/device/gid.h"

namespace dlslime::rdma {

namespace {

constexpr uint32_t kPacketSequenceMask = 0xffffff;
constexpr uint8_t kRetryForEver = 7; // of rnr_retry; credits prevent RNR
constexpr uint8_t kMinRnrTimer = 12; // 0.64 ms
constexpr uint8_t kHopLimit = 64;
constexpr int kMostReads = 16;

uint32_t randomSequence() {
  uint32_t value = 0;
  const auto bytes = randomBytes(sizeof(value));
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value & kPacketSequenceMask;
}

uint8_t readsOf(int most) {
  return static_cast<uint8_t>(std::clamp(most, 1, kMostReads));
}

} // namespace

void QueuePairAddress::write(ByteWriter& writer) const {
  writer.number(number);
  writer.number(packetSequence);
  writer.number(lid);
  writer.number(static_cast<uint8_t>(mtu));
  writer.number(static_cast<uint8_t>(ethernet));
  writer.number(static_cast<uint8_t>(globalHeader));
  writer.number(maxReadsIn);
  writer.raw(std::as_bytes(std::span(gid.raw)));
}

QueuePairAddress QueuePairAddress::read(ByteReader& reader) {
  QueuePairAddress address;
  address.number = reader.number<uint32_t>();
  address.packetSequence = reader.number<uint32_t>();
  address.lid = reader.number<uint16_t>();
  const auto mtu = reader.number<uint8_t>();
  address.mtu = static_cast<ibv_mtu>(mtu);
  address.ethernet = reader.number<uint8_t>() != 0;
  address.globalHeader = reader.number<uint8_t>() != 0;
  address.maxReadsIn = reader.number<uint8_t>();
  const auto gid = reader.raw(sizeof(address.gid.raw));
  if (!reader.ok() || address.packetSequence > kPacketSequenceMask ||
      mtu < IBV_MTU_256 || mtu > IBV_MTU_4096 || address.maxReadsIn == 0 ||
      address.maxReadsIn > kMostReads) {
    throw Error(
        ErrorCode::kPeerFailed, "the peer's queue pair address is malformed");
  }
  std::memcpy(address.gid.raw, gid.data(), gid.size());
  return address;
}

QueuePair::QueuePair(
    NicPtr nic,
    CompletionQueuePtr completions,
    QueueDepths depths,
    const RdmaConfig& config)
    : nic_(std::move(nic)),
      completions_(std::move(completions)),
      config_(config),
      packetSequence_(randomSequence()) {
  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.send_cq = attributes.recv_cq = completions_->get();
  attributes.cap.max_send_wr = depths.sends;
  attributes.cap.max_recv_wr = depths.receives;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  // No query returns the device's limit on inline data, so the size is halved
  // until the device accepts.
  const auto& verbs = nic_->context()->verbs();
  for (auto bytes = depths.inlineBytes; pair_ == nullptr; bytes /= 2) {
    attributes.cap.max_inline_data = bytes;
    pair_ = verbs.createQp(nic_->domain()->get(), &attributes);
    if (pair_ == nullptr && bytes == 0) {
      throwErrno(
          "cannot make a queue pair of " + std::to_string(depths.sends) +
              " sends and " + std::to_string(depths.receives) +
              " receives on " + nic_->name(),
          errno);
    }
  }
  inlineBytes_ = attributes.cap.max_inline_data;
  try {
    toInit();
  } catch (const Error&) {
    verbs.destroyQp(pair_);
    throw;
  }
}

QueuePair::~QueuePair() {
  const int error = nic_->context()->verbs().destroyQp(pair_);
  if (error != 0) {
    logWarning("a queue pair could not be freed: " + errnoText(error));
  }
}

QueuePairAddress QueuePair::address() const {
  QueuePairAddress own;
  own.number = pair_->qp_num;
  own.packetSequence = packetSequence_;
  own.lid = nic_->lid();
  own.mtu = nic_->mtu();
  own.ethernet = nic_->ethernet();
  own.globalHeader = nic_->globalHeaderRequired();
  own.maxReadsIn = readsOf(nic_->limits().maxReadsIn);
  own.gid = nic_->gid().value;
  return own;
}

int QueuePair::tryModify(ibv_qp_attr& attributes, int mask) {
  return nic_->context()->verbs().modifyQp(
      pair_, &attributes, mask | IBV_QP_STATE);
}

void QueuePair::modify(ibv_qp_attr& attributes, int mask, const char* step) {
  if (const int error = tryModify(attributes, mask); error != 0) {
    throwErrno(
        "cannot bring a queue pair of " + nic_->name() + " to " + step, error);
  }
}

// Finds the way to the peer, so a failure is most often about the addresses of
// both ends.
void QueuePair::toReadyToReceive(const QueuePairAddress& peer) {
  auto attributes = pathTo(peer);
  const int error = tryModify(
      attributes,
      IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) {
    throwErrno(
        "cannot bring a queue pair to RTR, from GID " +
            std::to_string(nic_->gid().index) + " (" +
            gidText(nic_->gid().value) + ") of " + nic_->name() + " to GID " +
            gidText(peer.gid) +
            " of the peer (DLSLIME_GID_INDEX and DLSLIME_NICS choose others)",
        error);
  }
  pathMtu_ = attributes.path_mtu;
}

void QueuePair::toInit() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = static_cast<uint16_t>(config_.pkeyIndex);
  attributes.port_num = nic_->port();
  attributes.qp_access_flags =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  modify(
      attributes,
      IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
      "INIT");
}

ibv_qp_attr QueuePair::pathTo(const QueuePairAddress& peer) const {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = std::min(nic_->mtu(), peer.mtu);
  attributes.dest_qp_num = peer.number;
  attributes.rq_psn = peer.packetSequence;
  attributes.max_dest_rd_atomic = readsOf(nic_->limits().maxReadsIn);
  attributes.min_rnr_timer = kMinRnrTimer;
  auto& path = attributes.ah_attr;
  path.port_num = nic_->port();
  path.sl = static_cast<uint8_t>(config_.serviceLevel);
  path.dlid = peer.lid;
  // InfiniBand needs the global header only between subnets, or when virtual
  // ports share a LID at either end.
  path.is_global = nic_->ethernet() || nic_->globalHeaderRequired() ||
      peer.globalHeader ||
      peer.gid.global.subnet_prefix != nic_->gid().value.global.subnet_prefix;
  path.grh.dgid = peer.gid;
  path.grh.sgid_index = static_cast<uint8_t>(nic_->gid().index);
  path.grh.hop_limit = kHopLimit;
  path.grh.traffic_class = static_cast<uint8_t>(config_.trafficClass);
  return attributes;
}

void QueuePair::connect(const QueuePairAddress& peer) {
  if (peer.ethernet != nic_->ethernet()) {
    throw Error(
        ErrorCode::kUnavailable,
        nic_->name() + " is " + (nic_->ethernet() ? "Ethernet" : "InfiniBand") +
            ", the peer's NIC is not");
  }
  toReadyToReceive(peer);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = static_cast<uint8_t>(config_.timeout);
  attributes.retry_cnt = static_cast<uint8_t>(config_.retryCount);
  attributes.rnr_retry = kRetryForEver;
  attributes.sq_psn = packetSequence_;
  attributes.max_rd_atomic =
      std::min(peer.maxReadsIn, readsOf(nic_->limits().maxReadsOut));
  modify(
      attributes,
      IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
          IBV_QP_MAX_QP_RD_ATOMIC,
      "RTS");
}

void QueuePair::toError() noexcept {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  // An error means that the device is gone, and then touches no memory anyway.
  nic_->context()->verbs().modifyQp(pair_, &attributes, IBV_QP_STATE);
}

ibv_send_wr* QueuePair::postSend(ibv_send_wr* list, int& error) {
  ibv_send_wr* bad = list;
  error = ibv_post_send(pair_, list, &bad);
  return error == 0 ? nullptr : bad;
}

bool QueuePair::postReceives(uint32_t count) {
  // The receives take only an immediate, so they have no memory.
  constexpr uint32_t kChain = 32;
  while (count > 0) {
    ibv_recv_wr chain[kChain] = {};
    const uint32_t now = std::min(count, kChain);
    for (uint32_t i = 0; i + 1 < now; ++i) {
      chain[i].next = &chain[i + 1];
    }
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(pair_, chain, &bad) != 0) {
      return false;
    }
    count -= now;
  }
  return true;
}

} // namespace dlslime::rdma
