#pragma once

#include <deque>

#include "core/transport.h"
#include "shm/layout.h"

namespace dlslime::shm {

// The receiver's side of large messages: what is being fetched from one peer.
// Under the engine's lock.
class Pulls {
 public:
  struct Peer {
    uint32_t pid;
    bool readable; // we may read its memory
  };

  Pulls(CopyDesk* desks, Peer peer) : desks_(desks), peer_(peer) {}

  void start(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination);
  void abandon(uint64_t pullId);
  void endAll();
  // Reports what has ended. True if something has.
  bool poll(ConnectionEvents& events);
  bool claim(CopyJob& job);
  void finish(const CopyJob& job);
  // A desk holds what no peer of ours would write.
  bool corrupted() const {
    return corrupted_;
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
  };
  Pull* find(uint64_t pullId);
  void openDesks();
  bool ended(const Pull& pull) const;

  CopyDesk* const desks_;
  const Peer peer_;
  bool ended_ = false;
  bool corrupted_ = false;
  bool deskUsed_[kDesks] = {};
  std::deque<Pull> pulls_;
};

} // namespace dlslime::shm
