#include "transports/shm/shm_transport.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>

#include "base/bytes.h"
#include "base/log.h"
#include "transports/shm/cma.h"
#include "transports/shm/shm_connection.h"

namespace dlslime::shm {

// Offer or answer of the peer.
struct ShmTransport::PeerHalf {
  uint64_t ringBytes = 0;
  std::vector<UniqueFd> fds; // doorbell page; in an offer also the segment
};

namespace {

// Returns why processes of different network namespaces do not meet, and what
// to do.
std::string apartText(const PeerIdentity& self, const PeerIdentity& peer) {
  std::string text =
      "same host, but different network namespaces, which abstract unix "
      "sockets do not connect";
  if (!self.directory.empty() && !peer.directory.empty()) {
    return text +
        ", and DLSLIME_RENDEZVOUS_DIR is another directory at each end: mount "
        "the same into both containers";
  }
  if (self.directory.empty() && peer.directory.empty()) {
    return text +
        ": mount one directory into both containers (an emptyDir within a pod, "
        "a hostPath between pods) and set DLSLIME_RENDEZVOUS_DIR to it";
  }
  return text + ", and DLSLIME_RENDEZVOUS_DIR is not set " +
      (self.directory.empty() ? "at this end" : "at the peer's end") +
      ": mount and set the directory of the other end";
}

} // namespace

ShmTransport::ShmTransport(const Config& config) : config_(config) {
  const auto permitted = processToPermit(getppid(), accessRules("/proc"));
  if (config_.shm && config_.crossMemoryAttach && permitted != 0) {
    prctl(PR_SET_PTRACER, permitted, 0, 0, 0);
  }
}

Status ShmTransport::reaches(const PeerIdentity& self, const PeerIdentity& peer)
    const {
  if (!config_.shm) {
    return {ErrorCode::kUnavailable, "switched off by DLSLIME_SHM=off"};
  }
  if (self.bootId != peer.bootId) {
    return {ErrorCode::kUnavailable, "on another host (" + peer.host + ")"};
  }
  const bool sameDirectory =
      !self.directory.empty() && self.directory == peer.directory;
  if (self.networkNamespace != peer.networkNamespace && !sameDirectory) {
    return {ErrorCode::kUnavailable, apartText(self, peer)};
  }
  if (self.hostUid != peer.hostUid) {
    return {
        ErrorCode::kUnavailable,
        "same host, but another user (uid " + std::to_string(peer.hostUid) +
            ", this process has " + std::to_string(self.hostUid) +
            "): users share no memory"};
  }
  return {};
}

Offer ShmTransport::half(bool withSegment, const std::string& nonce) {
  ByteWriter writer;
  writer.number(static_cast<uint64_t>(config_.ringBytes));
  Offer offer{writer.take(), {}};
  offer.fds.push_back(doorbell_.duplicatePage());
  if (withSegment) {
    const auto& made =
        offered_.put(nonce, Segment::create(segmentBytes(config_.ringBytes)));
    offer.fds.push_back(made.duplicateFd());
  }
  return offer;
}

ShmTransport::PeerHalf ShmTransport::parse(Offer offer, bool withSegment)
    const {
  ByteReader reader(offer.blob);
  PeerHalf peer;
  peer.ringBytes = reader.number<uint64_t>();
  peer.fds = std::move(offer.fds);
  const size_t expected = withSegment ? 2 : 1;
  if (!reader.atEnd() || peer.fds.size() != expected ||
      peer.ringBytes < (1 << 14) || peer.ringBytes > (1 << 30) ||
      peer.ringBytes % kLayoutBytes != 0) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the peer's shared-memory offer is malformed (" +
            std::to_string(offer.blob.size()) + " bytes, " +
            std::to_string(peer.fds.size()) + " descriptors, rings of " +
            std::to_string(peer.ringBytes) + " bytes)");
  }
  return peer;
}

// Tells of a slow way that could be faster: not between containers that meet in
// a directory, where nothing is faster than two copies.
void ShmTransport::tellRefusal(const Context& context, int error) const {
  const auto pid = context.peerPid;
  const bool ended = pid != 0 && error == ESRCH;
  const bool byDirectory = pid == 0 && !context.peer.directory.empty();
  if (error == 0 || ended || byDirectory) {
    return;
  }
  const auto text = refusedAccessText(pid, error, accessRules("/proc"));
  if (refusals_.isNew(text)) {
    logWarning(text);
  }
}

std::unique_ptr<Connection> ShmTransport::connect(
    const Context& context,
    PeerHalf peer,
    Segment segment,
    int side) const {
  const auto pid = context.peerPid;
  const int denied = config_.crossMemoryAttach ? accessProblem(pid) : ECANCELED;
  if (config_.crossMemoryAttach) {
    tellRefusal(context, denied);
  }
  const size_t ringBytes = (segment.size() - kLayoutBytes) / 2;
  ShmConnection::Ends ends{
      std::move(segment),
      RemoteDoorbell(std::move(peer.fds[0])),
      ringBytes,
      pid,
      side};
  return std::make_unique<ShmConnection>(std::move(ends), denied == 0);
}

Offer ShmTransport::offer(const Context& context) {
  return half(true, context.nonce);
}

std::unique_ptr<Connection>
ShmTransport::accept(const Context& context, Offer offer, Offer& answer) {
  PeerHalf peer = parse(std::move(offer), true);
  Segment segment =
      Segment::adopt(std::move(peer.fds[1]), segmentBytes(peer.ringBytes));
  answer = half(false, context.nonce);
  return connect(context, std::move(peer), std::move(segment), 1);
}

std::unique_ptr<Connection> ShmTransport::finish(
    const Context& context,
    Offer answer) {
  Segment segment = offered_.take(context.nonce);
  return connect(
      context, parse(std::move(answer), false), std::move(segment), 0);
}

} // namespace dlslime::shm
