#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/memory/shared_descriptor.h"
#include "base/threads/mutex.h"
#include "cuda/driver/allocation.h"
#include "interface/accelerator.h"
#include "interface/memory.h"

namespace dlslime::cuda {

// Everything a process on the host needs for mapping an exporter's allocation.
struct ExportedAllocation {
  uint64_t id = 0; // given by the exporter; never used twice
  uint64_t base = 0; // address in the exporter
  uint64_t size = 0;
  enum class By : uint8_t {
    kIpc = 1, // by handle; memory of cudaMalloc
    kDescriptor = 2, // by descriptor; mapped memory
    kFabric = 3, // by handle, or by the descriptor if present; mapped memory
  };
  By by = By::kIpc;
  int32_t descriptor = -1; // number of the SharedDescriptor in the exporter
  DescriptorProof proof;
  IpcMemoryHandle handle{};
};

// Encodes a description for a peer.
Bytes encode(const ExportedAllocation& exported);
// Decodes a peer's description. Throws Error{kTransportFailed} if the bytes are
// no valid description.
ExportedAllocation decodeAllocation(ByteSpan bytes);

// The allocations of the process that peers may map. The Gpus passed to of()
// must outlive the object. Any thread.
class Exports {
 public:
  Exports();
  // `mostDescriptors` limits the descriptors kept open. Only mapped memory has
  // descriptors, needed until peers have mapped the memory.
  explicit Exports(size_t mostDescriptors)
      : mostDescriptors_(mostDescriptors) {}

  // Returns the ids of the allocations holding the bytes, by address, and
  // exports each allocation at the first use. Throws Error{kUnavailable} with
  // the reason if the memory can't be shared (memory of a pool, a container
  // forbidding it), and remembers the reason.
  std::vector<uint64_t> of(const Gpu& gpu, DevicePointer pointer, size_t bytes);
  // Returns the description of an allocation. Throws Error if the allocation
  // has been freed, or if the descriptor can't be made anew.
  ExportedAllocation describe(uint64_t id);
  // Returns a copy of the descriptor in the last description, if any.
  GpuSharing::Handed handOver(uint64_t id);
  // Returns false if the allocation is no longer shared. Peers should then
  // unmap it, or the GPU does not get the memory back.
  bool live(uint64_t id);
  // Stops sharing freed allocations, at the cost of a driver call for each
  // shared allocation. Returns true if any was found, now or since the last
  // call.
  bool dropFreed();
  // Stops sharing all allocations but `ids`.
  void dropAllBut(const std::set<uint64_t>& ids);

 private:
  struct Entry {
    const Gpu* gpu = nullptr;
    Allocation allocation;
    uint64_t id = 0;
    Status problem;
    ExportedAllocation::By by = ExportedAllocation::By::kIpc;
    IpcMemoryHandle handle{};
    // Null until asked for, and again after too many newer descriptors were
    // opened.
    std::unique_ptr<SharedDescriptor> descriptor;
  };
  Entry* find(const Allocation& allocation) REQUIRES(mutex_);
  Entry& add(const Gpu& gpu, const Allocation& allocation) REQUIRES(mutex_);
  void dropWhatWasAt(const Allocation& allocation) REQUIRES(mutex_);
  static bool mayHaveDescriptor(const Entry& entry);
  void exportMapped(Entry& entry) REQUIRES(mutex_);
  void openDescriptor(Entry& entry) REQUIRES(mutex_);
  using Node = std::map<DevicePointer, Entry>::node_type;
  std::vector<Node> take(const std::function<bool(const Entry&)>& which)
      REQUIRES(mutex_);

  const size_t mostDescriptors_;
  Mutex mutex_;
  // Nothing waits for a GPU under mutex_. A changed buffer id shows that an
  // allocation was freed.
  std::map<DevicePointer, Entry> entries_ GUARDED_BY(mutex_);
  // Base by id; shareable allocations only.
  std::map<uint64_t, DevicePointer> bases_ GUARDED_BY(mutex_);
  // Ids with open descriptors, oldest first.
  std::deque<uint64_t> opened_ GUARDED_BY(mutex_);
  uint64_t nextId_ GUARDED_BY(mutex_) = 1;
  // An entry was dropped for new memory at the address.
  bool replaced_ GUARDED_BY(mutex_) = false;
};

} // namespace dlslime::cuda
