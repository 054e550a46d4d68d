#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/memory/shared_descriptor.h"
#include "cuda/driver/allocation.h"
#include "interface/memory.h"

namespace dlslime::cuda {

// What a process needs to map an allocation of another one on its host.
struct ExportedAllocation {
  uint64_t id = 0; // the exporter's own; never used twice
  uint64_t base = 0; // the exporter's address of it
  uint64_t size = 0;
  enum class By : uint8_t {
    kIpc = 1, // handle, of cudaMalloc's memory
    kDescriptor = 2, // of mapped memory
    kFabric = 3, // handle, or the descriptor if there is one
  };
  By by = By::kIpc;
  int32_t descriptor = -1; // SharedDescriptor's number, in the exporter
  DescriptorProof proof;
  IpcMemoryHandle handle{};
};

// How it is told to others. Throws Error{kTransportFailed}: it is not that.
Bytes encode(const ExportedAllocation& exported);
ExportedAllocation decodeAllocation(ByteSpan bytes);

// The allocations of this process that peers may map. Any thread; the Gpus
// that it is given outlive it.
class Exports {
 public:
  Exports();
  // At most so many descriptors are kept open; of mapped memory alone, and for
  // as long as it takes peers to map it.
  explicit Exports(size_t mostDescriptors)
      : mostDescriptors_(mostDescriptors) {}

  // The ids of those that hold these bytes, by address; exported at their first
  // use. Throws Error: kUnavailable, and why, if this memory can't be shared (a
  // pool's, a container that forbids it), which is remembered as well.
  std::vector<uint64_t> of(const Gpu& gpu, DevicePointer pointer, size_t bytes);
  // Throws Error: it has been freed, or its descriptor can't be made anew.
  ExportedAllocation describe(uint64_t id);
  // False: it is not shared any more. Peers should let go of it, or its memory
  // is not given back to the GPU.
  bool live(uint64_t id);
  // Stops sharing what has been freed, which takes a call of the driver for
  // each that is shared. True if there was any, now or since the last time.
  bool dropFreed();
  // Stops sharing all but these.
  void dropAllBut(const std::set<uint64_t>& ids);

 private:
  struct Entry {
    const Gpu* gpu = nullptr;
    Allocation allocation;
    uint64_t id = 0;
    Status problem;
    ExportedAllocation::By by = ExportedAllocation::By::kIpc;
    IpcMemoryHandle handle{};
    // Null: made when it is asked for, if there can be one.
    std::unique_ptr<SharedDescriptor> descriptor;
  };
  Entry* find(const Allocation& allocation);
  Entry& add(const Gpu& gpu, const Allocation& allocation);
  void dropWhatWasAt(const Allocation& allocation);
  static bool mayHaveDescriptor(const Entry& entry);
  void exportMapped(Entry& entry);
  void openDescriptor(Entry& entry);
  using Node = std::map<DevicePointer, Entry>::node_type;
  std::vector<Node> take(const std::function<bool(const Entry&)>& which);

  const size_t mostDescriptors_;
  std::mutex mutex_;
  // Guarded by mutex_, under which nothing waits for a GPU. One that was freed
  // is found out by its buffer id.
  std::map<DevicePointer, Entry> entries_;
  std::map<uint64_t, DevicePointer> bases_; // of those that can be shared
  std::deque<uint64_t> opened_; // with descriptors, the oldest first
  uint64_t nextId_ = 1;
  bool replaced_ = false; // something was dropped for what is there now
};

} // namespace dlslime::cuda
