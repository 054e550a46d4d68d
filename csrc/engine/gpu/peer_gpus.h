#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>

#include "base/log_once.h"
#include "engine/gpu/staging.h"
#include "interface/accelerator.h"
#include "interface/message.h"
#include "interface/transport.h"

namespace dlslime {

// What one peer has shared of its GPUs' memory, and copies between there and
// ours, past all processors. Under the engine's lock.
class PeerGpus {
 public:
  // Asks the peer to describe an allocation of its own again.
  using AskAgain = std::function<void(uint64_t id)>;

  PeerGpus(const PeerIdentity& peer, AskAgain askAgain)
      : peer_(peer), askAgain_(std::move(askAgain)) {}

  void connected(const Connection& connection) {
    pid_ = connection.peerPid();
  }
  // kShare, kUnshare.
  void onShare(const MessageHeader& header, ByteSpan payload);
  // Reads or writes pieces of what the peer has named as `there`, from or to
  // memory of our GPU `device`. False: it can't be, which is logged, each
  // reason once; `done` is not called.
  bool move(
      Accelerator& gpus,
      int device,
      const RemoteBuffer& there,
      bool write,
      std::span<const Piece> pieces,
      Accelerator::Done done);
  // From messages of this peer.
  Uploads& uploads() {
    return uploads_;
  }
  // Copies that are under way keep what they need.
  void trim() {
    if (mapped_) {
      mapped_->unmapIdle();
    }
  }
  // The peer is gone. Copies that are under way keep what they need.
  void drop() {
    shared_.clear();
    mapped_.reset();
  }

 private:
  void beginToMap(Accelerator& gpus);
  bool tell(uint64_t id, ByteSpan description);
  void say(const Error& error);

  const PeerIdentity& peer_;
  const AskAgain askAgain_;
  uint32_t pid_ = 0;
  // How to map it, by the peer's id; empty: mapped_ has been told.
  std::map<uint64_t, Bytes> shared_;
  std::unique_ptr<Accelerator::PeerMemory> mapped_; // from the first use on
  LogOnce said_;
  Uploads uploads_;
};

} // namespace dlslime
