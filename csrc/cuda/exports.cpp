#include "cuda/exports.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/bytes.h"

namespace dlslime::cuda {

namespace {

std::string describe(const Gpu& gpu, const Allocation& allocation) {
  return "memory of " + gpu.describe() + " (" +
      std::to_string(allocation.size) +
      " bytes) can't be shared with other processes: ";
}

void refuseIf(
    const Gpu& gpu,
    const Allocation& allocation,
    Result result,
    const char* call,
    const char* why) {
  if (result != Result::kSuccess) {
    throw Error(
        ErrorCode::kUnavailable,
        describe(gpu, allocation) + why + "; " +
            gpu.driver().status(result, call).message());
  }
}

// Reference to the memory mapped at an allocation, held while the object lives.
class Retained {
 public:
  Retained(const Gpu& gpu, const Allocation& allocation)
      : driver_(gpu.driver()) {
    refuseIf(
        gpu,
        allocation,
        driver_.retainHandle(&handle, reinterpret_cast<void*>(allocation.base)),
        "cuMemRetainAllocationHandle",
        "only memory of cudaMalloc or cuMemCreate can be shared, and not of "
        "cudaMallocAsync");
  }
  ~Retained() {
    driver_.releaseHandle(handle);
  }
  Retained(const Retained&) = delete;
  Retained& operator=(const Retained&) = delete;

  MemoryHandle handle = 0;

 private:
  const Driver& driver_;
};

// Returns a descriptor of the memory. An open descriptor keeps the memory, even
// after the program has freed it.
UniqueFd descriptorOf(const Gpu& gpu, const Allocation& allocation) {
  const Gpu::Scope scope(gpu);
  const Retained retained(gpu, allocation);
  int fd = -1;
  refuseIf(
      gpu,
      allocation,
      gpu.driver().exportHandle(&fd, retained.handle, kDescriptorHandle, 0),
      "cuMemExportToShareableHandle",
      "cuMemCreate was called with neither "
      "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR nor _FABRIC");
  UniqueFd owned(fd);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return owned;
}

bool allows(const Allocation& allocation, int handleType) {
  return (allocation.handleTypes & static_cast<unsigned>(handleType)) != 0;
}

// Gets a fabric handle; returns false if none can be had. Fabric handles are
// for GPUs joined by an NVLink switch and having a channel (IMEX).
bool fabricHandleOf(
    const Gpu& gpu,
    const Allocation& allocation,
    IpcMemoryHandle& handle) {
  if (!allows(allocation, kFabricHandle)) {
    return false;
  }
  const Gpu::Scope scope(gpu);
  const Retained retained(gpu, allocation);
  return gpu.driver().exportHandle(
             &handle, retained.handle, kFabricHandle, 0) == Result::kSuccess;
}

bool stillThere(const Gpu& gpu, const Allocation& known) {
  try {
    const Gpu::Scope scope(gpu);
    return allocationOf(gpu.driver(), known.base).bufferId == known.bufferId;
  } catch (const Error&) {
    return false; // no memory is at the address
  }
}

// Returns the part that exports may take of the process's limit of descriptors.
size_t shareOfDescriptors() {
  constexpr size_t kOneIn = 4, kLeast = 16;
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0
      ? std::max<size_t>(limit.rlim_cur / kOneIn, kLeast)
      : kLeast;
}

} // namespace

Bytes encode(const ExportedAllocation& exported) {
  ByteWriter writer;
  writer.number(exported.id);
  writer.number(exported.base);
  writer.number(exported.size);
  writer.number(static_cast<uint8_t>(exported.by));
  writer.number(exported.descriptor);
  writer.number(exported.proof.address);
  writer.number(exported.proof.word);
  writer.blob(std::as_bytes(std::span(exported.handle.bytes)));
  return writer.take();
}

ExportedAllocation decodeAllocation(ByteSpan bytes) {
  ByteReader reader(bytes);
  ExportedAllocation exported;
  exported.id = reader.number<uint64_t>();
  exported.base = reader.number<uint64_t>();
  exported.size = reader.number<uint64_t>();
  const auto by = reader.number<uint8_t>();
  exported.descriptor = reader.number<int32_t>();
  exported.proof.address = reader.number<uint64_t>();
  exported.proof.word = reader.number<uint64_t>();
  const auto handle = reader.blob();
  if (!reader.atEnd() || handle.size() != sizeof(exported.handle.bytes) ||
      by < 1 || by > 3 || exported.size == 0 ||
      exported.base > UINT64_MAX - exported.size) {
    throw Error(
        ErrorCode::kTransportFailed,
        "a peer's description of GPU memory can't be decoded: " +
            std::to_string(bytes.size()) + " bytes");
  }
  exported.by = static_cast<ExportedAllocation::By>(by);
  std::memcpy(exported.handle.bytes, handle.data(), handle.size());
  return exported;
}

Exports::Exports() : Exports(shareOfDescriptors()) {}

Exports::Entry* Exports::find(const Allocation& allocation) {
  const auto found = entries_.find(allocation.base);
  return found != entries_.end() &&
          found->second.allocation.bufferId == allocation.bufferId
      ? &found->second
      : nullptr;
}

Exports::Entry& Exports::add(const Gpu& gpu, const Allocation& allocation) {
  dropWhatWasAt(allocation);
  auto& entry = entries_[allocation.base];
  entry.gpu = &gpu;
  entry.allocation = allocation;
  entry.id = nextId_++;
  try {
    if (allocation.legacyIpc) {
      const Gpu::Scope scope(gpu);
      gpu.driver().check(
          gpu.driver().ipcGetHandle(&entry.handle, allocation.base),
          "sharing a GPU's memory (cuIpcGetMemHandle)");
    } else {
      exportMapped(entry);
    }
    bases_[entry.id] = allocation.base;
  } catch (const Error& error) {
    entry.problem = error.status();
  }
  return entry;
}

// Drops entries overlapping the allocation: they have been freed, since no two
// allocations are at an address.
void Exports::dropWhatWasAt(const Allocation& allocation) {
  const auto overlaps = [&](const Entry& entry) {
    return entry.allocation.base < allocation.end() &&
        allocation.base < entry.allocation.end();
  };
  const auto last = entries_.lower_bound(allocation.end());
  if (last != entries_.begin() && overlaps(std::prev(last)->second)) {
    take(overlaps);
    replaced_ =
        true; // peers not told of the new allocation still have the old mapped
  }
}

bool Exports::mayHaveDescriptor(const Entry& entry) {
  using By = ExportedAllocation::By;
  return entry.by == By::kDescriptor ||
      (entry.by == By::kFabric && allows(entry.allocation, kDescriptorHandle));
}

void Exports::exportMapped(Entry& entry) {
  using By = ExportedAllocation::By;
  const bool fabric =
      fabricHandleOf(*entry.gpu, entry.allocation, entry.handle);
  entry.by = fabric ? By::kFabric : By::kDescriptor;
  if (mayHaveDescriptor(entry)) {
    openDescriptor(entry);
  }
}

void Exports::openDescriptor(Entry& entry) {
  entry.descriptor = std::make_unique<SharedDescriptor>(
      descriptorOf(*entry.gpu, entry.allocation));
  opened_.push_back(entry.id);
  if (opened_.size() > mostDescriptors_) {
    const auto oldest = bases_.at(opened_.front());
    opened_.pop_front();
    entries_.at(oldest).descriptor.reset();
  }
}

std::vector<uint64_t>
Exports::of(const Gpu& gpu, DevicePointer pointer, size_t bytes) {
  const auto all = allocationsOf(gpu, pointer, bytes);
  if (all.size() > mostDescriptors_) { // a peer needs all descriptors at once
    throw Error(
        ErrorCode::kUnavailable,
        std::to_string(bytes) + " bytes of " + gpu.describe() + " are of " +
            std::to_string(all.size()) + " allocations, and no more than " +
            std::to_string(mostDescriptors_) +
            " descriptors are kept open: raise the limit of open files "
            "(ulimit -n)");
  }
  std::vector<uint64_t> ids;
  ids.reserve(all.size());
  const MutexLock lock(mutex_);
  for (const auto& allocation : all) {
    auto* entry = find(allocation);
    if (entry == nullptr) {
      entry = &add(gpu, allocation);
    }
    if (!entry->problem.ok()) {
      throw Error(entry->problem);
    }
    ids.push_back(entry->id);
  }
  return ids;
}

ExportedAllocation Exports::describe(uint64_t id) {
  const MutexLock lock(mutex_);
  const auto base = bases_.find(id);
  if (base == bases_.end()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "the GPU memory with the number " + std::to_string(id) +
            " is not shared, or has been freed");
  }
  auto& entry = entries_.at(base->second);
  const auto& allocation = entry.allocation;
  if (mayHaveDescriptor(entry) && !entry.descriptor) {
    openDescriptor(entry);
  }
  return {
      id,
      allocation.base,
      allocation.size,
      entry.by,
      entry.descriptor ? entry.descriptor->number() : -1,
      entry.descriptor ? entry.descriptor->proof() : DescriptorProof(),
      entry.handle};
}

GpuSharing::Handed Exports::handOver(uint64_t id) {
  const MutexLock lock(mutex_);
  const auto base = bases_.find(id);
  if (base == bases_.end() || !entries_.at(base->second).descriptor) {
    return {};
  }
  const auto& descriptor = *entries_.at(base->second).descriptor;
  return {
      descriptor.proof().word,
      UniqueFd(fcntl(descriptor.number(), F_DUPFD_CLOEXEC, 0))};
}

// Takes entries out and returns them, so that the caller can close descriptors
// after unlocking mutex_.
std::vector<Exports::Node> Exports::take(
    const std::function<bool(const Entry&)>& which) {
  std::vector<Node> taken;
  for (auto next = entries_.begin(); next != entries_.end();) {
    const auto entry = next++;
    if (which(entry->second)) {
      bases_.erase(entry->second.id);
      taken.push_back(entries_.extract(entry));
    }
  }
  std::erase_if(opened_, [&](uint64_t id) REQUIRES(mutex_) {
    return !bases_.contains(id);
  });
  return taken;
}

bool Exports::dropFreed() {
  std::map<uint64_t, std::pair<const Gpu*, Allocation>> known; // by id
  {
    const MutexLock lock(mutex_);
    for (const auto& [base, entry] : entries_) {
      known[entry.id] = {entry.gpu, entry.allocation};
    }
  }
  std::erase_if(known, [](const auto& item) {
    return stillThere(*item.second.first, item.second.second);
  });
  std::vector<Node> freed;
  const MutexLock lock(mutex_);
  if (!known.empty()) {
    freed = take([&](const Entry& entry) { return known.contains(entry.id); });
  }
  return std::exchange(replaced_, false) || !freed.empty();
}

void Exports::dropAllBut(const std::set<uint64_t>& ids) {
  std::vector<Node> others;
  const MutexLock lock(mutex_);
  others = take([&](const Entry& entry) { return !ids.contains(entry.id); });
}

bool Exports::live(uint64_t id) {
  const MutexLock lock(mutex_);
  return bases_.contains(id);
}

} // namespace dlslime::cuda
