#include "engine/channel/channel_parts.h"

#include <utility>

namespace dlslime {

ChannelParts::ChannelParts(
    const Shared& shared,
    const Outbound::Limits& limits,
    const PeerIdentity& peer,
    TransferFinisher::SendNote sendNote)
    : out(shared.connection, shared.completions, limits),
      in(shared.connection,
         out,
         shared.gpus,
         shared.completions,
         shared.sequencer,
         limits),
      initiator(
          shared.connection,
          out,
          shared.gpus,
          shared.completions,
          shared.regions,
          peer,
          std::move(sendNote)),
      target(shared.connection, out, shared.gpus, shared.regions) {}

bool ChannelParts::flush() {
  constexpr int kParts = 3;
  const bool queued = out.flushQueued();
  bool any = false;
  const int first = first_;
  for (int i = 0; i < kParts; ++i) {
    const int which = (first + i) % kParts;
    const bool sent = which == 0 ? out.flushStreams()
        : which == 1             ? initiator.flush()
                                 : target.flush();
    if (sent && !any) {
      first_ = (which + 1) % kParts;
    }
    any |= sent;
  }
  return any || queued;
}

void ChannelParts::sever() {
  out.sever();
  in.sever();
  initiator.sever();
}

void ChannelParts::detach(std::vector<SentMessage> unconfirmed) {
  out.keepUnconfirmed(std::move(unconfirmed));
  in.detach();
  initiator.detach();
  target.detach();
}

Status ChannelParts::resume(Connection& connection, uint64_t peerLast) {
  in.resume(connection);
  if (auto status = out.resume(connection, peerLast); !status.ok()) {
    return status;
  }
  target.resume(connection);
  initiator.resume(connection);
  return {};
}

void ChannelParts::fail(const Status& why) {
  insist([&]() REQUIRES(kEngineLock) { out.fail(why); });
  insist([&]() REQUIRES(kEngineLock) { in.fail(why); });
  insist([&]() REQUIRES(kEngineLock) { initiator.fail(why); });
  target.fail();
}

} // namespace dlslime
