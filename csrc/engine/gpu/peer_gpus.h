#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>

#include "base/log_once.h"
#include "engine/gpu/staging.h"
#include "engine/progress/engine_mutex.h"
#include "engine/wire/gpu_messages.h"
#include "interface/accelerator.h"
#include "interface/transport.h"

namespace dlslime {

// GPU memory shared by a peer, and copies between that memory and memory of our
// GPUs without any processor. Under the engine's lock.
class PeerGpus {
 public:
  // Asks the peer for a new description of the peer's allocation `id`, and to
  // hand the descriptor over.
  using AskAgain = std::function<void(uint64_t id, bool handOver)>;

  PeerGpus(const PeerIdentity& peer, AskAgain askAgain)
      : peer_(peer), askAgain_(std::move(askAgain)) {}

  void connected(const Connection& connection) REQUIRES(kEngineLock) {
    pid_ = connection.info().peerPid;
  }
  void onShare(const wire::Share& share, ByteSpan payload)
      REQUIRES(kEngineLock);
  void onUnshare(const wire::Unshare& unshare) REQUIRES(kEngineLock) {
    forget(unshare.allocation);
  }
  // Takes a descriptor that the peer has handed over.
  void onDescriptor(uint64_t number, UniqueFd fd) REQUIRES(kEngineLock) {
    if (mapped_) {
      mapped_->take(number, std::move(fd));
    }
  }
  // Copies pieces between the peer's memory `there` and memory of our GPU
  // `device`; `write` means to the peer. False: nothing is copied and `done` is
  // not called. Errors are logged, each reason once.
  bool move(
      Accelerator& gpus,
      int device,
      const RemoteBuffer& there,
      bool write,
      std::span<const Piece> pieces,
      Accelerator::Done done) REQUIRES(kEngineLock);
  // Copies of bytes from the peer's messages to our GPUs.
  Uploads& uploads() REQUIRES(kEngineLock) {
    return uploads_;
  }
  // Unmaps idle memory. Copies under way keep the mappings they need.
  void trim() REQUIRES(kEngineLock) {
    if (mapped_) {
      mapped_->unmapIdle();
    }
  }
  // Forgets everything when the peer is gone. Copies under way keep the
  // mappings they need.
  void drop() REQUIRES(kEngineLock) {
    shared_.clear();
    mapped_.reset();
  }

 private:
  void beginToMap(Accelerator& gpus) REQUIRES(kEngineLock);
  bool tell(uint64_t id, ByteSpan description) REQUIRES(kEngineLock);
  void forget(uint64_t id) REQUIRES(kEngineLock);
  void say(const Error& error) REQUIRES(kEngineLock);

  const PeerIdentity& peer_;
  const AskAgain askAgain_;
  uint32_t pid_ = 0;
  // Descriptions of the shared allocations by the peer's id; empty once handed
  // to mapped_.
  std::map<uint64_t, Bytes> shared_;
  std::unique_ptr<GpuSharing::PeerMemory> mapped_; // null before the first use
  LogOnce said_;
  Uploads uploads_;
};

} // namespace dlslime
