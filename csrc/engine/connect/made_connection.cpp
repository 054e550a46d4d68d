#include "engine/connect/made_connection.h"

#include <utility>

#include "base/log.h"
#include "engine/state/engine_lock.h"
#include "engine/state/preparing.h"

namespace dlslime {

namespace {

// Returns the channel awaiting the connection, and in `unprepared` the
// operations not yet prepared for the connection.
std::shared_ptr<PeerChannel> findWaiting(
    EngineState& state,
    const MadeConnection& made,
    Unprepared& unprepared) REQUIRES(kEngineLock) {
  auto channel = state.channels.find(made.key);
  if (!channel || !channel->awaitsConnection()) {
    throw Error(
        ErrorCode::kTransportFailed,
        "the connection that was to be replaced is given up");
  }
  unprepared =
      state.groupRegistry.unprepared(*channel, made.connection->registrar());
  return channel;
}

// Leaves the lock to prepare operations, as often as new ones have come.
void replace(
    EngineState& state,
    EngineLock& lock,
    MadeConnection& made,
    ControlSocket socket) REQUIRES(kEngineLock) NO_THREAD_SAFETY_ANALYSIS {
  Unprepared unprepared;
  auto channel = findWaiting(state, made, unprepared);
  while (!unprepared.operations.empty()) {
    lock.leave();
    prepareAll(state, unprepared);
    lock.enterAgain();
    channel = findWaiting(state, made, unprepared);
  }
  state.channels.replaceSocket(*channel, std::move(socket));
  channel->resumed(
      std::move(made.connection),
      std::move(made.rejected),
      made.replaces + 1,
      made.peerLast,
      made.began);
}

void add(EngineState& state, MadeConnection& made, ControlSocket socket)
    REQUIRES(kEngineLock) {
  auto channel = state.makeChannel(made.peer.identity, made.unexpectedLimit);
  channel->connected(
      std::move(made.connection), std::move(made.rejected), made.began);
  state.channels.add(
      made.key,
      {std::move(made.peer), std::move(made.pairSecret)},
      std::move(channel),
      std::move(socket));
}

} // namespace

MadeConnection describedBy(const Hello& hello) {
  // The members are set singly, because no exception may strike a half-built
  // aggregate.
  MadeConnection made;
  made.peer.identity = hello.self;
  made.peer.socketName = hello.socketName;
  made.peer.addresses = hello.addresses;
  made.unexpectedLimit = hello.unexpectedLimit;
  made.replaces = hello.replaces;
  made.peerLast = hello.lastSeen;
  made.probe = hello.probe;
  for (const auto& [route, reason] : hello.rejected) {
    made.rejected.push_back({route, reason});
  }
  return made;
}

void install(EngineState& state, MadeConnection made, ControlSocket socket) {
  const auto& peer = made.peer.identity;
  EngineLock lock(state);
  logInfo(
      "connected to pid " + std::to_string(peer.pid) + " on " + peer.host +
      " over " + std::string(made.connection->route()) + "/" +
      std::string(made.connection->info().copyName));
  if (made.replaces != 0) {
    replace(state, lock, made, std::move(socket));
  } else {
    add(state, made, std::move(socket));
  }
  state.retireFailed(); // sending again at once may have failed the channel
  // The peer may have sent, and rung the doorbell, before the channel existed.
  state.epoll.kick();
}

void installSelf(
    EngineState& state,
    const ChannelKey& key,
    const AddressRecord& record) {
  const EngineLock lock(state);
  auto channel =
      state.makeChannel(record.identity, state.config.unexpectedLimitBytes);
  channel->connected(Transports::makeSelfConnection(), {});
  state.channels.add(key, {record, {}}, std::move(channel), std::nullopt);
}

} // namespace dlslime
