#include "engine/core/connection_memory.h"

#include <functional>
#include <set>

#include "engine/core/forked_child.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
// Visits every channel of the group once. Returns the registrars of the
// channels, which live as long as the engine.
std::set<MemoryRegistrar*> visit(
    Group& group,
    const std::function<void(PeerChannel&)>& act) REQUIRES(kEngineLock) {
  std::set<PeerChannel*> channels;
  std::set<MemoryRegistrar*> registrars;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto& channel = group.link(rank).channel;
    if (channel && channels.insert(channel.get()).second) {
      act(*channel);
      registrars.insert(channel->connection().registrar());
    }
  }
  registrars.erase(nullptr);
  return registrars;
}

// Ends the sharing of idle allocations of all groups, because the engine does
// not know to which group an allocation belongs. Memory that a peer may fetch
// at any time stays shared; the rest is shared again at the next use.
void unshareIdle(EngineState& state, Accelerator& gpus) REQUIRES(kEngineLock) {
  const auto members = state.channels.those(
      [](const PeerChannel& channel)
          REQUIRES(kEngineLock) { return channel.alive(); });
  std::set<uint64_t> inUse;
  for (const auto& member : members) {
    if (auto* const parts = member.channel->parts()) {
      parts->addSharedInUse(inUse);
    }
  }
  gpus.sharing().shareOnly(inUse);
}

} // namespace

uint32_t peerPid(EngineState& state, Group& group, int rank) {
  refuseInForkedChild();
  const EngineLock lock(state);
  const auto& link = group.link(rank);
  if (link.state == Group::LinkState::kFailed) {
    throw Error(link.failure);
  }
  if (link.state != Group::LinkState::kReady || !link.channel->open()) {
    throw Error(
        ErrorCode::kTransportFailed,
        group.nameOf(rank) +
            " is not connected now: exchange a message with it first");
  }
  return link.channel->connection().info().peerPid;
}

MemoryUse memoryUse(EngineState& state, Group& group) {
  MemoryUse use;
  std::set<MemoryRegistrar*> registrars;
  {
    const EngineLock lock(state);
    registrars = visit(group, [&](PeerChannel& channel) REQUIRES(kEngineLock) {
      use += channel.connection().info().memory;
    });
  }
  for (auto* const registrar : registrars) {
    use += registrar->memoryUse();
  }
  if (auto* const gpus = state.accelerator()) {
    use += gpus->memoryUse();
  }
  return use;
}

void trim(EngineState& state, Group& group) {
  std::set<MemoryRegistrar*> registrars;
  {
    const EngineLock lock(state);
    const auto pending = group.pending();
    if (!pending.empty()) {
      throw Error(
          ErrorCode::kUnusable,
          std::to_string(pending.size()) +
              " operations of this group are pending, the first of them " +
              pending.front()->describe() + ": wait for them first");
    }
    registrars = visit(group, [](PeerChannel& channel) REQUIRES(kEngineLock) {
      channel.trim();
    });
    if (auto* const gpus = state.accelerator()) {
      unshareIdle(state, *gpus);
    }
  }
  for (auto* const registrar : registrars) {
    registrar->trim();
  }
  if (auto* const gpus = state.accelerator()) {
    gpus->trim();
  }
  state.gpuReclaimer.sweep();
}

} // namespace dlslime
