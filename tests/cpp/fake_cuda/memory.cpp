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
  uint64_t inode; // what that descriptor stood for
  int device;
};
static_assert(sizeof(Handle) <= sizeof(IpcMemoryHandle));

std::atomic<uint64_t> nextId{1};

std::byte* map(int fd, size_t size, int protection) {
  void* const address = mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
  return address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
}

} // namespace

Allocation::Allocation(int fd_, size_t size, int device_, bool imported_)
    : fd(fd_),
      device(device_),
      imported(imported_),
      id(nextId++),
      size_(size),
      seen_(map(fd, size, PROT_NONE)),
      alias_(map(fd, size, PROT_READ | PROT_WRITE)) {}

Allocation::~Allocation() {
  munmap(seen_, size_);
  munmap(alias_, size_);
  close(fd);
}

Memory& Memory::instance() {
  static auto* memory = new Memory; // streams outlive static objects
  return *memory;
}

std::shared_ptr<Allocation> Memory::allocate(size_t size, int device) {
  const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) {
    if (fd >= 0) {
      close(fd);
    }
    return nullptr;
  }
  auto made = std::make_shared<Allocation>(fd, size, device, false);
  const std::lock_guard<std::mutex> guard(mutex_);
  allocations_[made->base()] = made;
  return made;
}

Result Memory::free(DevicePointer base, bool imported) {
  std::shared_ptr<Allocation> gone; // unmapped after unlocking
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = allocations_.find(base);
  if (found == allocations_.end() || found->second->imported != imported) {
    return Result::kInvalidValue;
  }
  if (imported && --found->second->opened > 0) {
    return Result::kSuccess;
  }
  gone = std::move(found->second);
  allocations_.erase(found);
  return Result::kSuccess;
}

std::shared_ptr<Allocation> Memory::findLocked(DevicePointer pointer) {
  auto after = allocations_.upper_bound(pointer);
  if (after == allocations_.begin()) {
    return nullptr;
  }
  const auto& candidate = std::prev(after)->second;
  return pointer < candidate->base() + candidate->size() ? candidate : nullptr;
}

std::shared_ptr<Allocation> Memory::find(DevicePointer pointer) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return findLocked(pointer);
}

Result Memory::exportHandle(DevicePointer pointer, IpcMemoryHandle& handle) {
  const auto allocation = find(pointer);
  if (!allocation || allocation->imported || allocation->legacyIpc == 0) {
    return Result::kInvalidValue;
  }
  struct stat info {};
  fstat(allocation->fd, &info);
  const Handle content{
      kMagic,
      getpid(),
      allocation->fd,
      allocation->size(),
      info.st_ino,
      allocation->device};
  std::memset(&handle, 0, sizeof(handle));
  std::memcpy(&handle, &content, sizeof(content));
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
    return Result::kInvalidContext; // as the driver: never one's own
  }
  const auto path = "/proc/" + std::to_string(content.pid) + "/fd/" +
      std::to_string(content.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0 || info.st_ino != content.inode) {
    if (fd >= 0) {
      close(fd);
    }
    return Result::kMapFailed; // freed, or its process has ended
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& [address, known] : allocations_) {
    struct stat other {};
    if (known->imported && fstat(known->fd, &other) == 0 &&
        other.st_ino == info.st_ino) {
      close(fd);
      ++known->opened;
      base = address;
      return Result::kSuccess;
    }
  }
  auto made = std::make_shared<Allocation>(fd, content.size, device, true);
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
  host_[reinterpret_cast<DevicePointer>(address)] = size;
  return address;
}

Result Memory::freeHost(void* memory) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = host_.find(reinterpret_cast<DevicePointer>(memory));
  if (found == host_.end()) {
    return Result::kInvalidValue;
  }
  munmap(memory, found->second);
  host_.erase(found);
  return Result::kSuccess;
}

bool Memory::pinned(DevicePointer pointer, size_t size) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto after = host_.upper_bound(pointer);
  if (after == host_.begin()) {
    return false;
  }
  const auto& [begin, length] = *std::prev(after);
  return pointer + size <= begin + length;
}

int Memory::count(bool imported) {
  const std::lock_guard<std::mutex> guard(mutex_);
  int count = 0;
  for (const auto& entry : allocations_) {
    count += entry.second->imported == imported ? 1 : 0;
  }
  return count;
}

int Memory::pinnedCount() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return static_cast<int>(host_.size());
}

} // namespace fake_cuda
