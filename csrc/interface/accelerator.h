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

// A stream of a GPU; `native` is the handle of the GPU's driver.
struct DeviceStream {
  int device = MemoryView::kProcessor;
  void* native = nullptr;
};

// Calls made around each copy from or to memory of a GPU; the memory must stay
// until the copy has ended.
struct CopyUser {
  std::function<void()> begins;
  std::function<void(const Status&)> ended; // once for each begins()
};

// Access of NICs to memory of GPUs. Any thread.
class GpuNicMemory {
 public:
  struct Allocation {
    // Ids never given to different memory, even at equal addresses. Memory put
    // together of several parts (torch's expandable segments) has an id for
    // each part.
    std::vector<uint64_t> ids;
    MemoryView whole;
  };
  // Returns the allocation holding the memory. Throws Error if no allocation
  // does.
  virtual Allocation allocationOf(const MemoryView& view) = 0;
  // Description of GPU memory for the driver of a NIC.
  struct ForNics {
    // A dma-buf with the memory; -1: NICs register the memory by address, and
    // the kernel must know the address.
    UniqueFd dmaBuf;
    uint64_t offset = 0; // of the memory in dmaBuf, in bytes
  };
  // Describes the memory to NICs; slow. Throws Error with the reason if NICs
  // can't or should not have access.
  virtual ForNics forNics(const MemoryView& view) = 0;

 protected:
  ~GpuNicMemory() = default;
};

// Sharing memory of GPUs with processes of the host. Under the engine's lock,
// except where a comment says otherwise.
class GpuSharing {
 public:
  // Returns the ids of the allocations holding the memory, by address; an id is
  // never used twice. Returns none if the memory can't be shared, and logs the
  // reason the first time.
  virtual std::vector<uint64_t> share(const MemoryView& view) = 0;
  // Returns a description for the peer's PeerMemory::add(), to be mapped soon;
  // empty if the allocation can no longer be shared, with the reason logged.
  virtual Bytes describeShared(uint64_t id) = 0;
  // Returns a descriptor of the allocation, with the number by which
  // describeShared() names the descriptor, for a peer that can't copy it by
  // itself; empty if there is none.
  struct Handed {
    uint64_t number = 0;
    UniqueFd fd;
  };
  virtual Handed handOver(uint64_t id) = 0;
  // Returns false if the allocation was found freed, or is no longer shared.
  virtual bool isShared(uint64_t id) = 0;
  // Stops sharing all allocations but `ids`.
  virtual void shareOnly(const std::set<uint64_t>& ids) = 0;
  // GPU memory shared by a peer; mapped at the first use.
  class PeerMemory {
   public:
    virtual ~PeerMemory() = default;
    // Adds an allocation described by the peer's describeShared(). Throws Error
    // if the description is invalid.
    virtual void add(uint64_t id, ByteSpan description) = 0;
    virtual void forget(uint64_t id) = 0;
    // Unmaps memory not in use by copies, until the next use.
    virtual void unmapIdle() = 0;
    // Starts copies between memory of our GPU `device` and memory of the peer,
    // as Accelerator::copy() does. Returns false if copying is impossible for
    // now; throws Error if the memory was not shared, or can't be mapped.
    // Nothing is copied then.
    virtual bool move(
        int device,
        bool write, // to the peer
        std::span<const Piece> pieces,
        std::function<void(const Status&)> done) = 0;
    // Returns the ids not mapped by the last move() because their descriptions
    // have expired; the peer should send new descriptions.
    virtual std::set<uint64_t> takeOutdated() = 0;
    // Returns the ids not mapped by the last move() because this process may
    // not copy their descriptors; the peer should hand the descriptors over.
    virtual std::set<uint64_t> takeUnfetchable() = 0;
    // Takes a descriptor that the peer has handed over.
    virtual void take(uint64_t number, UniqueFd fd) = 0;
  };
  // `pid` is the peer's, proven by reading the peer's memory; 0 if reading is
  // not permitted.
  virtual std::unique_ptr<PeerMemory> peerMemory(uint32_t pid) = 0;
  // Stops sharing freed memory; any thread, not under the engine's lock.
  // Returns true if any was found, so that peers should be told.
  virtual bool dropFreed() = 0;

 protected:
  ~GpuSharing() = default;
};

// Mappings of memory that peers have shared. Any thread.
class GpuMappings {
 public:
  // Unmaps mappings no longer in use, waiting for all work of the GPUs; not
  // under the engine's lock. Returns
  // false if a stream is held back, so that unmapping has to be tried later.
  virtual bool unmapUnused() = 0;
  // Sets a function called when a mapping falls out of use: on any thread,
  // perhaps under the engine's lock.
  virtual void onUnused(std::function<void()> tell) = 0;

 protected:
  ~GpuMappings() = default;
};

// Interface to the GPUs of the process. Calls return without waiting for a GPU,
// except where a comment says otherwise.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // Sets up a GPU for transfers. May wait for all work given to the GPU, so it
  // is called neither under the engine's lock nor on behalf of a message. Any
  // thread. Throws Error.
  virtual void meet(int device) = 0;

  // --- The caller's streams. Any thread ----------------------------------

  // A place in a stream; dropped only once reached, or once the stream has
  // failed.
  class Mark {
   public:
    virtual ~Mark() = default;
    virtual bool reached() const = 0;
    // Returns why the stream has failed and will never reach the place, or ok.
    // Costs a driver call.
    virtual Status health() const = 0;
  };
  // A copy made by the stream into pinned memory before the stream reaches a
  // mark; the pinned memory must stay until then.
  struct Download {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t size = 0; // 0: nothing
  };
  // Returns a mark behind all work given to the stream so far, and behind the
  // download. Throws Error; kInvalidArgument means that a graph is being
  // captured from the stream.
  virtual std::unique_ptr<Mark> mark(
      const DeviceStream& stream,
      const Download& before) = 0;

  // Keeps a stream waiting until release(). release() is called at least once,
  // on any thread, and makes no driver call.
  class StreamBlock {
   public:
    virtual ~StreamBlock() = default;
    virtual void release() = 0;
  };
  // Blocks the stream; returns null if streams can't be made to wait for a
  // processor. May wait, so not under the engine's lock. Throws Error.
  virtual std::unique_ptr<StreamBlock> hold(const DeviceStream& stream) = 0;

  // Returns memory accessible to processors and the GPU. Allocating may wait
  // for the GPU. Any thread. Throws Error.
  virtual std::shared_ptr<std::byte> pin(int device, size_t size) = 0;
  // Returns the bytes of pinned memory, partly kept for later use. Any thread.
  virtual MemoryUse memoryUse() = 0;
  // Frees idle pinned memory unless a stream is held back. May wait for GPUs,
  // so not under the engine's lock. Any thread.
  virtual void trim() = 0;

  // --- Copies. Under the engine's lock ------------------------------------
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t size = 0;
  };
  using Done = std::function<void(const Status&)>;
  // Starts copies between pinned memory and memory of the GPU, by a stream of
  // the accelerator's own and in the order of the calls. poll() calls `done`
  // once, for all copies together. If copy() throws, no copy has begun and
  // `done` is not called.
  virtual void copy(int device, std::span<const Copy> copies, Done done) = 0;

  // Calls `done` of ended copies. Returns true if a copy has ended. Under the
  // engine's lock.
  virtual bool poll() = 0;
  virtual bool copying() const = 0;

  // The further duties; each object is a part of this one.
  virtual GpuNicMemory& nicMemory() = 0;
  virtual GpuSharing& sharing() = 0;
  virtual GpuMappings& mappings() = 0;
};

// Additional state of an operation on memory of a GPU. Under the engine's lock
// once the operation is posted.
struct OnDevice {
  DeviceStream stream; // current stream of the caller at posting
  Accelerator* accelerator = nullptr; // set at posting
  // Place in `stream` where the operation may begin; set at posting.
  std::unique_ptr<Accelerator::Mark> mark;
  // Pinned copy of a small send's bytes, complete once the mark is reached; set
  // at posting.
  std::shared_ptr<std::byte> staged;
  // Number of copies under way from or to the memory; the operation ends after
  // the last copy.
  int copies = 0;
  Status copyFailure;
  std::optional<Status> ending; // status to end with after the last copy
};

} // namespace dlslime
