#pragma once

#include <deque>

#include "interface/transport.h"
#include "transports/shm/layout.h"

namespace dlslime::shm {

// Receiver's side of large messages: the pulls from a peer. Under the engine's
// lock.
class Pulls {
 public:
  Pulls(CopyDesk* desks, uint32_t peerPid) : desks_(desks), pid_(peerPid) {}

  void start(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination);
  void abandon(uint64_t pullId);
  void endAll();
  // Ends all pending pulls with kDenied, because neither end may copy any more.
  void denyAll();
  // Reports all ended pulls to `events`. Returns true if any had ended.
  bool poll(ConnectionEvents& events);
  // Takes the next piece to copy. Call only while the kernel permits access to
  // the peer's memory.
  bool claim(CopyJob& job);
  void finish(const CopyJob& job);
  // Returns true once a desk has held impossible numbers, written by a faulty
  // peer.
  bool corrupted() const {
    return corrupted_;
  }
  // Returns true once the sender has reported, at a desk, a refusal by the
  // kernel to write into the local process.
  bool senderDenied() const {
    return senderDenied_;
  }

 private:
  struct Pull {
    uint64_t pullId = 0;
    uint64_t peerId = 0;
    uint64_t source = 0; // address in the peer
    MemoryView destination;
    size_t piece = 0; // bytes of a piece
    uint32_t total = 0; // number of pieces
    int desk = -1; // -1: not opened yet
    uint32_t running = 0; // pieces being copied by local threads
    Status status;
    bool abandoned = false;
    bool afterDenial = false; // begun after the sender's denial
  };
  Pull* find(uint64_t pullId);
  void giveUp(Pull& pull, Status why);
  void openDesks();
  bool ended(const Pull& pull) const;

  CopyDesk* const desks_;
  const uint32_t pid_;
  bool ended_ = false;
  bool senderDenied_ = false;
  bool corrupted_ = false;
  bool deskUsed_[kDesks] = {};
  std::deque<Pull> pulls_;
};

} // namespace dlslime::shm
