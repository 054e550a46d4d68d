#pragma once

#include <memory>
#include <vector>

#include "engine/bootstrap/control_socket.h"
#include "engine/bootstrap/wire_records.h"
#include "engine/connect/route.h"
#include "engine/state/engine_state.h"

namespace dlslime {

// Usable connection, with all data needed to install the connection.
struct MadeConnection {
  ChannelKey key;
  AddressRecord peer; // without a token if the peer was the initiator
  Bytes pairSecret;
  uint64_t unexpectedLimit = 0; // of the peer, in bytes
  std::unique_ptr<Connection> connection;
  std::vector<RejectedRoute> rejected;
  uint32_t replaces = 0; // number, from 1, of the replaced one; 0: none
  uint64_t peerLast = 0; // number of the last message seen by the peer
  bool probe = false;
  bool began = false; // by this end
};

// Receives the results of the handshakes of either direction.
class HandshakeResults {
 public:
  // Takes a made connection over. Throws Error if no channel waits for a
  // replacement any more.
  virtual void onMade(MadeConnection made, ControlSocket socket) = 0;
  // `gone`: no address of the peer has a listener, so the process has ended.
  virtual void onFailed(const ChannelKey& key, Status why, bool gone) = 0;

 protected:
  ~HandshakeResults() = default;
};

// Returns what the hello of a peer says of the connection.
MadeConnection describedBy(const Hello& hello);

// Puts the connection to use: in a new channel of the table, or in the channel
// that waits for a replacement. Throws Error if none waits any more.
void install(EngineState& state, MadeConnection made, ControlSocket socket);

// Adds a channel from this process to itself.
void installSelf(
    EngineState& state,
    const ChannelKey& key,
    const AddressRecord& record);

} // namespace dlslime
