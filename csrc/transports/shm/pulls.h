#pragma once

#include <deque>

#include "interface/transport.h"
#include "transports/shm/layout.h"

namespace dlslime::shm {

// The receiver's side of large messages: what is being fetched from one peer.
// Under the engine's lock.
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
  // Neither end may copy any more: what is not copied yet ends as kDenied.
  void denyAll();
  // Reports what has ended. True if something has.
  bool poll(ConnectionEvents& events);
  // Only where we may read the peer's memory.
  bool claim(CopyJob& job);
  void finish(const CopyJob& job);
  // A desk holds what no peer of ours would write.
  bool corrupted() const {
    return corrupted_;
  }
  // The sender may write into this process no longer: it has said so.
  bool senderDenied() const {
    return senderDenied_;
  }

 private:
  struct Pull {
    uint64_t pullId = 0;
    uint64_t peerId = 0;
    uint64_t source = 0; // address in the peer
    MemoryView destination;
    size_t piece = 0; // bytes
    uint32_t total = 0; // pieces
    int desk = -1; // -1: not opened yet
    uint32_t running = 0; // pieces that our own threads are copying
    Status status;
    bool abandoned = false;
    bool afterDenial = false; // begun when the sender had said so
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
