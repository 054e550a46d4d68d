#include "fake_cuda/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <string>

namespace fake_cuda {

namespace {

constexpr uint64_t kMagic = 0xfacade0fc0dafacaULL;

struct Handle {
  uint64_t magic;
  int pid;
  int fd;
  uint64_t size;
  uint64_t inode; // of the file behind the descriptor
  int device;
  DevicePointer base;
};
static_assert(sizeof(Handle) <= sizeof(IpcMemoryHandle));

std::atomic<uint64_t> nextId{1};
constexpr auto kAlreadyMapped = static_cast<Result>(208);

std::byte* reserveAddresses(size_t size, DevicePointer wanted) {
  void* const address = mmap(
      reinterpret_cast<void*>(wanted),
      size,
      PROT_NONE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  return static_cast<std::byte*>(address);
}

uint64_t inodeOf(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

} // namespace

Physical::~Physical() {
  close(fd);
}

std::shared_ptr<Physical> makePhysical(size_t size, int device) {
  const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) {
    if (fd >= 0) {
      close(fd);
    }
    return nullptr;
  }
  return std::make_shared<Physical>(fd, size, device, false);
}

Reservation::Reservation(size_t size_, DevicePointer wanted)
    : size(size_),
      seen_(reserveAddresses(size, wanted)),
      alias_(reserveAddresses(size, 0)) {}

Reservation::~Reservation() {
  munmap(seen_, size);
  munmap(alias_, size);
}

Allocation::Allocation(
    std::shared_ptr<Physical> physical_,
    std::shared_ptr<Reservation> place_,
    DevicePointer base)
    : physical(std::move(physical_)),
      place(std::move(place_)),
      id(nextId++),
      base_(base) {
  mmap(
      bytes(),
      size(),
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_FIXED,
      physical->fd,
      0);
}

Allocation::~Allocation() {
  mmap(
      bytes(),
      size(),
      PROT_NONE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
      -1,
      0);
}

Memory& Memory::instance() {
  static auto* memory = new Memory; // streams outlive static objects
  return *memory;
}

AllocationPtr Memory::allocate(size_t size, int device) {
  const auto physical = makePhysical(size, device);
  if (!physical) {
    return nullptr;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  auto& freed = freed_[size];
  DevicePointer wanted = 0;
  if (!freed.empty()) {
    wanted = freed.front();
    freed.pop_front();
  }
  const auto place = std::make_shared<Reservation>(size, wanted);
  auto made = std::make_shared<Allocation>(physical, place, place->base());
  allocations_[made->base()] = made;
  return made;
}

Result Memory::free(DevicePointer base, bool imported) {
  AllocationPtr gone; // unmapped after unlocking
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = allocations_.find(base);
  if (found == allocations_.end() || found->second->imported() != imported ||
      reservations_.contains(found->second->place->base())) {
    return Result::kInvalidValue;
  }
  if (imported && --found->second->opened > 0) {
    return Result::kSuccess;
  }
  gone = std::move(found->second);
  allocations_.erase(found);
  if (!imported) {
    freed_[gone->size()].push_back(base);
  }
  return Result::kSuccess;
}

AllocationPtr Memory::findLocked(DevicePointer pointer) {
  auto after = allocations_.upper_bound(pointer);
  if (after == allocations_.begin()) {
    return nullptr;
  }
  const auto& candidate = std::prev(after)->second;
  return pointer < candidate->base() + candidate->size() ? candidate : nullptr;
}

std::vector<AllocationPtr> Memory::span(DevicePointer pointer, size_t size) {
  std::vector<AllocationPtr> parts;
  const std::lock_guard<std::mutex> guard(mutex_);
  for (auto next = pointer; parts.empty() || next < pointer + size;) {
    const auto part = findLocked(next);
    if (!part || !part->accessible ||
        (!parts.empty() && parts[0]->place != part->place)) {
      return {};
    }
    parts.push_back(part);
    next = part->base() + part->size();
  }
  return parts;
}

AllocationPtr Memory::find(DevicePointer pointer) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return findLocked(pointer);
}

void Memory::describe(
    const Physical& physical,
    IpcMemoryHandle& handle,
    DevicePointer base) {
  const Handle content{
      kMagic,
      getpid(),
      physical.fd,
      physical.size,
      inodeOf(physical.fd),
      physical.device,
      base};
  std::memset(&handle, 0, sizeof(handle));
  std::memcpy(&handle, &content, sizeof(content));
}

std::shared_ptr<Physical> Memory::open(
    const IpcMemoryHandle& handle,
    int device) {
  Handle content{};
  std::memcpy(&content, &handle, sizeof(content));
  const auto path = "/proc/" + std::to_string(content.pid) + "/fd/" +
      std::to_string(content.fd);
  const int fd =
      content.magic == kMagic ? ::open(path.c_str(), O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) {
    return nullptr;
  }
  if (inodeOf(fd) != content.inode) { // freed, or the exporter has ended
    close(fd);
    return nullptr;
  }
  return std::make_shared<Physical>(fd, content.size, device, true);
}

Result Memory::exportHandle(DevicePointer pointer, IpcMemoryHandle& handle) {
  const auto allocation = find(pointer);
  if (!allocation || allocation->imported() || !allocation->legacyIpc) {
    return Result::kInvalidValue;
  }
  describe(*allocation->physical, handle, allocation->base());
  return Result::kSuccess;
}

Result Memory::importHandle(
    const IpcMemoryHandle& handle,
    int device,
    DevicePointer& base) {
  Handle content{};
  std::memcpy(&content, &handle, sizeof(content));
  if (content.magic != kMagic) {
    return Result::kInvalidValue;
  }
  if (content.pid == getpid()) {
    return Result::kInvalidContext; // as the real driver answers
  }
  const auto physical = open(handle, device);
  if (!physical) {
    return Result::kMapFailed;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& [address, known] : allocations_) {
    if (known->imported() && inodeOf(known->physical->fd) == content.inode) {
      ++known->opened;
      base = address;
      return Result::kSuccess;
    }
    if (known->imported() &&
        known->exporter == Exporter{content.pid, content.base}) {
      return kAlreadyMapped; // freed by the exporter, still open here
    }
  }
  const auto place = std::make_shared<Reservation>(content.size);
  auto made = std::make_shared<Allocation>(physical, place, place->base());
  made->legacyIpc = false;
  made->exporter = {content.pid, content.base};
  base = made->base();
  allocations_[base] = std::move(made);
  return Result::kSuccess;
}

void* Memory::allocateHost(size_t size) {
  void* const address = mmap(
      nullptr,
      size,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS,
      -1,
      0);
  if (address == MAP_FAILED) {
    return nullptr;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  host_[reinterpret_cast<DevicePointer>(address)] = {size, false};
  return address;
}

Result Memory::registerHost(void* memory, size_t size) {
  constexpr auto kAlreadyRegistered = static_cast<Result>(712);
  const auto begin = reinterpret_cast<DevicePointer>(memory);
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto after = host_.lower_bound(begin + size);
  if (after != host_.begin() &&
      std::prev(after)->first + std::prev(after)->second.size > begin) {
    return kAlreadyRegistered;
  }
  host_[begin] = {size, true};
  return Result::kSuccess;
}

Result Memory::unregisterHost(void* memory) {
  constexpr auto kNotRegistered = static_cast<Result>(713);
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = host_.find(reinterpret_cast<DevicePointer>(memory));
  if (found == host_.end() || !found->second.registered) {
    return kNotRegistered;
  }
  host_.erase(found);
  return Result::kSuccess;
}

Result Memory::freeHost(void* memory) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = host_.find(reinterpret_cast<DevicePointer>(memory));
  if (found == host_.end() || found->second.registered) {
    return Result::kInvalidValue;
  }
  munmap(memory, found->second.size);
  host_.erase(found);
  return Result::kSuccess;
}

bool Memory::pinned(DevicePointer pointer, size_t size) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto after = host_.upper_bound(pointer);
  if (after == host_.begin()) {
    return false;
  }
  const auto& [begin, memory] = *std::prev(after);
  return pointer + size <= begin + memory.size;
}

int Memory::count(bool imported) {
  const std::lock_guard<std::mutex> guard(mutex_);
  int count = 0;
  for (const auto& entry : allocations_) {
    count += entry.second->imported() == imported ? 1 : 0;
  }
  return count;
}

int Memory::pinnedCount() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return static_cast<int>(host_.size());
}

} // namespace fake_cuda
