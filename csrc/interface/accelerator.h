#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "interface/memory.h"

namespace dlslime {

// A stream of a GPU, by the handle that the GPU's driver has for it.
struct DeviceStream {
  int device = MemoryView::kProcessor;
  void* native = nullptr;
};

// Called around each copy from or to a GPU's memory, which must stay until it
// has ended.
struct CopyUser {
  std::function<void()> begins;
  std::function<void(const Status&)> ended; // once for each of the above
};

// What the engine asks of the GPUs of this process. It makes no call that waits
// for a GPU.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // Makes ready what transfers need on one GPU. It may wait for all that the
  // GPU has been given, and so is called neither under the engine's lock nor
  // for a message. Any thread. Throws Error.
  virtual void meet(int device) = 0;

  // --- The caller's streams. Any thread ----------------------------------

  // Tells when a stream has come to a place. It is dropped only once that is
  // so, or the stream has failed.
  class Mark {
   public:
    virtual ~Mark() = default;
    virtual bool reached() const = 0;
    // Not ok: the stream has failed, and never will. Costs a call.
    virtual Status health() const = 0;
  };
  // What the stream copies before it comes there, into pinned memory, which
  // must stay until then.
  struct Download {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t size = 0; // 0: nothing
  };
  // Behind all that was given to the stream so far. Throws Error:
  // kInvalidArgument if the stream is being captured into a graph.
  virtual std::unique_ptr<Mark> mark(
      const DeviceStream& stream,
      const Download& before) = 0;

  // Keeps a stream back until release(), which comes at least once, and makes
  // no call to the driver. Any thread.
  class StreamBlock {
   public:
    virtual ~StreamBlock() = default;
    virtual void release() = 0;
  };
  // Null: here a stream can't be made to wait for a processor. Throws Error.
  virtual std::unique_ptr<StreamBlock> hold(const DeviceStream& stream) = 0;

  // Memory that processors and that GPU can get at. Any thread. Throws Error.
  virtual std::shared_ptr<std::byte> pin(int device, size_t size) = 0;
  // Of all such memory, part of which is kept for its next use. Any thread.
  virtual MemoryUse memoryUse() = 0;
  virtual void trim() = 0;

  // --- Copies between pinned memory and a GPU's, by a stream of ours and in
  // the order of the calls. Under the engine's lock; `done` is called from
  // poll(), for all of them. Throws nothing --------------------------------
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t size = 0;
  };
  using Done = std::function<void(const Status&)>;
  virtual void copy(int device, std::span<const Copy> copies, Done done) = 0;

  // --- Memory of GPUs and NICs. Any thread --------------------------------
  struct Allocation {
    // Of no other memory, be it at the same addresses. Several: it was put
    // together of so many (torch's expandable segments).
    std::vector<uint64_t> ids;
    MemoryView whole;
  };
  // What the memory is in. Throws Error: it is in none.
  virtual Allocation allocationOf(const MemoryView& view) = 0;
  struct ForNics {
    UniqueFd dmaBuf; // -1: by its address, which the kernel must know
    uint64_t offset = 0; // of the memory in it
  };
  // Takes its time. Throws Error: NICs should not get at it, and why.
  virtual ForNics forNics(const MemoryView& view) = 0;

  // --- Memory of GPUs between processes of one host. Under the engine's lock
  // --
  // The allocations that the memory is in, by address: numbers that are never
  // used twice. None: it can't be shared, which was logged at the first time.
  virtual std::vector<uint64_t> share(const MemoryView& view) = 0;
  // For the other process's PeerMemory, which should map it soon. Empty: it
  // can't be shared any more, which was logged.
  virtual Bytes describeShared(uint64_t id) = 0;
  // False: it was found to have been freed, or is not shared any more.
  virtual bool isShared(uint64_t id) = 0;
  // All others are not shared any more.
  virtual void shareOnly(const std::set<uint64_t>& ids) = 0;
  // What one peer has shared, mapped at its first use.
  class PeerMemory {
   public:
    virtual ~PeerMemory() = default;
    // What describeShared() gave there. Throws Error: it is not that.
    virtual void add(uint64_t id, ByteSpan description) = 0;
    virtual void forget(uint64_t id) = 0;
    // It is mapped again when it is used again.
    virtual void unmapIdle() = 0;
    // Copies between memory of one of our GPUs and the peer's, as copy() does.
    // False: not now. Throws Error: it was not shared, or can't be mapped. Then
    // nothing is copied.
    virtual bool move(
        int device,
        bool write, // to the peer
        std::span<const Piece> pieces,
        Done done) = 0;
    // What the last move() could not map because its description has had its
    // time: it should be described anew.
    virtual std::set<uint64_t> takeOutdated() = 0;
  };
  // `pid`: of the peer, proven by reading its memory; 0: that is not permitted.
  virtual std::unique_ptr<PeerMemory> peerMemory(uint32_t pid) = 0;

  // --- Giving back. Any thread, not under the engine's lock ----------------
  // Unmaps what nobody uses any more. To unmap waits for all that goes on at
  // the GPU. False: a stream is held back, so that it has to wait, too.
  virtual bool unmapUnused() = 0;
  // Has this called when there is some. Any thread, also under the lock.
  virtual void onUnused(std::function<void()> tell) = 0;
  // Stops sharing memory that has been freed. True if there was any, of which
  // peers should be told.
  virtual bool dropFreed() = 0;

  // True if a copy has ended.
  virtual bool poll() = 0;
  virtual bool copying() const = 0;
};

// What an operation on memory of a GPU has besides; under the engine's lock
// from when it is posted.
struct OnDevice {
  DeviceStream stream; // the caller's, when it was posted
  Accelerator* accelerator = nullptr; // set when it is posted, as the next two
  std::unique_ptr<Accelerator::Mark> mark; // where the stream may begin it
  std::shared_ptr<std::byte> staged; // the bytes of a small send, once reached
  // Copies of ours from or to its memory: it ends when they have.
  int copies = 0;
  Status copyFailure;
  std::optional<Status> ending; // it would have ended with that meanwhile
};

} // namespace dlslime
