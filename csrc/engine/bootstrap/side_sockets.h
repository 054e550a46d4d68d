#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "engine/bootstrap/wire_records.h"
#include "interface/side_socket.h"

namespace dlslime {

// The route in the Hello of a socket that is to be a side socket.
inline constexpr const char* kSideRoute = "side socket";

// Side sockets that others have opened to this process: the wire-up thread
// brings them, and a thread that waits for one takes it. Any thread.
class SideSockets {
 public:
  // One with this nonce may come. Many that nobody has taken: the oldest is
  // forgotten.
  void expect(const std::string& nonce);
  // False: it is not expected.
  bool bring(const std::string& nonce, SideSocket socket);
  // Blocks until it has come. Throws Error: it has not in time, or close().
  SideSocket take(const std::string& nonce, TimePoint deadline);
  // Nobody needs it: a thread that waits for it gives up.
  void forget(const std::string& nonce);
  // Nobody waits any more.
  void close();

 private:
  struct Expected {
    std::string nonce;
    SideSocket socket; // once it has come
    bool awaited = false;
  };
  using Place = std::deque<Expected>::iterator;
  Place find(const std::string& nonce); // with mutex_ held

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Expected> expected_; // guarded by mutex_
  bool closed_ = false; // guarded by mutex_
};

// How to open one to a process, and what to say to it.
struct SideSocketWay {
  AddressRecord record;
  PeerIdentity self;
  Greeting greeting; // but for the nonce
  Bytes secret;
  Bytes hello; // encoded
};
// Blocks until the deadline at most; throws Error.
SideSocket openSideSocket(const SideSocketWay& way, TimePoint deadline);

} // namespace dlslime
