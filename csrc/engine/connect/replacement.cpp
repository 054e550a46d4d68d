#include "engine/connect/replacement.h"

#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
using Step = Replacement::Step;

Replacement refuse(Verdict verdict, std::string why = "") {
  return {Step::kRefuse, {verdict, std::move(why), {}, 0}};
}

// Gives up the working connection to be replaced, if there is one.
Replacement handOver(
    const std::shared_ptr<PeerChannel>& channel,
    uint32_t replaces) REQUIRES(kEngineLock) {
  if (!channel) {
    return refuse(
        Verdict::kStranger,
        "the connection that is to be replaced is given up");
  }
  if (replaces < channel->connection().generation()) {
    return refuse(Verdict::kCrossed); // replaced already
  }
  const Status why(
      ErrorCode::kTransportFailed, "the other end asks for a new connection");
  if (channel->open() && !channel->handOver(why)) {
    return refuse(
        Verdict::kRefused, "the old connection can't be replaced now");
  }
  return {};
}
} // namespace

Replacement decideReplacement(
    EngineState& state,
    const ChannelKey& key,
    const Hello& hello) {
  std::shared_ptr<PeerChannel> channel;
  {
    const EngineLock lock(state);
    channel = state.channels.find(key);
    if (hello.replaces == 0) {
      return channel ? refuse(Verdict::kCrossed) : Replacement{};
    }
    if (auto decided = handOver(channel, hello.replaces);
        decided.step != Step::kConnect) {
      return decided;
    }
    channel->poll();
    state.retireFailed();
  }
  state.closer.advance();
  const EngineLock lock(state);
  if (!channel->alive()) {
    return refuse(Verdict::kStranger, channel->failure().message());
  }
  if (!channel->awaitsConnection()) {
    return {Step::kReadOn, {}};
  }
  state.channels.dropSocket(*channel);
  return {};
}

} // namespace dlslime
