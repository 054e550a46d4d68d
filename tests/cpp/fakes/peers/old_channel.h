#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "engine/bootstrap/control_socket.h"
#include "engine/state/engine_lock.h"
#include "engine/state/engine_state.h"
#include "fakes/peers/faulty_connection.h"
#include "fakes/peers/stream_sockets.h"

namespace dlslime::testing {

// The state of an engine without threads, with a channel whose connection is to
// be replaced.
class OldChannel : public ::testing::Test {
 protected:
  // Adds a channel over the connection to the table.
  void add(std::unique_ptr<Connection> connection) {
    auto ends = unixEnds();
    socketOfPeer.emplace(std::move(ends[1]));
    const EngineLock lock(state);
    channel = state.makeChannel({}, 1 << 20);
    channel->connected(std::move(connection), {});
    state.channels.add(key, {}, channel, ControlSocket(std::move(ends[0])));
  }
  // Adds a channel over a wire that the test fills.
  void addWired() {
    Faults faults;
    faults.replaceable = true;
    add(std::make_unique<FaultyConnection>(wire, 0, 1, faults));
  }
  // Puts messages of the peer on the wire.
  void fill(int count, MessageType type = MessageType::kNop) {
    const MutexLock lock(wire->mutex);
    for (int i = 0; i < count; ++i) {
      MessageHeader header;
      header.type = type;
      header.sequence = ++sequence;
      wire->toEnd[0].push_back({header, {}});
    }
  }
  uint64_t lastSeen() {
    const EngineLock lock(state);
    return channel->lastSeen();
  }

  EngineState state{Config{}};
  ChannelKey key{Bytes(kInstanceBytes, std::byte{7}), RoutePolicy::kAuto};
  std::shared_ptr<Wire> wire = std::make_shared<Wire>();
  uint64_t sequence = 0; // of the last message put on the wire
  std::shared_ptr<PeerChannel> channel;
  std::optional<ControlSocket> socketOfPeer; // ends with the channel's socket
};

} // namespace dlslime::testing
