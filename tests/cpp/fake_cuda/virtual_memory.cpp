// Memory whose bytes and addresses are made apart (cuMemCreate, cuMemMap).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <iterator>

#include "fake_cuda/memory.h"

namespace fake_cuda {

DevicePointer Memory::reserve(size_t size) {
  const auto made = std::make_shared<Reservation>(size);
  const std::lock_guard<std::mutex> guard(mutex_);
  reservations_[made->base()] = made;
  return made->base();
}

Result Memory::unreserve(DevicePointer base, size_t size) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = reservations_.find(base);
  const auto inside = allocations_.lower_bound(base);
  if (found == reservations_.end() || found->second->size != size ||
      (inside != allocations_.end() && inside->first < base + size)) {
    return Result::kInvalidValue;
  }
  reservations_.erase(found);
  return Result::kSuccess;
}

std::shared_ptr<Reservation> Memory::reservationOf(DevicePointer pointer) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto after = reservations_.upper_bound(pointer);
  if (after == reservations_.begin()) {
    return nullptr;
  }
  const auto& [base, found] = *std::prev(after);
  return pointer < base + found->size ? found : nullptr;
}

uint64_t Memory::addHandle(std::shared_ptr<Physical> physical) {
  const std::lock_guard<std::mutex> guard(mutex_);
  handles_[nextHandle_] = std::move(physical);
  return nextHandle_++;
}

std::shared_ptr<Physical> Memory::ofHandle(uint64_t handle) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = handles_.find(handle);
  return found != handles_.end() ? found->second : nullptr;
}

Result Memory::dropHandle(uint64_t handle) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return handles_.erase(handle) == 1 ? Result::kSuccess : Result::kInvalidValue;
}

Result Memory::map(DevicePointer pointer, size_t size, uint64_t handle) {
  const auto place = reservationOf(pointer);
  const auto physical = ofHandle(handle);
  if (!place || !physical || physical->size != size ||
      pointer + size > place->base() + place->size) {
    return Result::kInvalidValue;
  }
  auto made = std::make_shared<Allocation>(physical, place, pointer);
  made->legacyIpc = false;
  made->accessible = false;
  const std::lock_guard<std::mutex> guard(mutex_);
  allocations_[pointer] = std::move(made);
  return Result::kSuccess;
}

Result Memory::unmap(DevicePointer pointer, size_t size) {
  AllocationPtr gone; // unmapped after unlocking
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = allocations_.find(pointer);
  if (found == allocations_.end() || found->second->size() != size ||
      found->second->legacyIpc) {
    return Result::kInvalidValue;
  }
  gone = std::move(found->second);
  allocations_.erase(found);
  return Result::kSuccess;
}

Result Memory::allowAccess(DevicePointer pointer, size_t size) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (auto next = pointer; next < pointer + size;) {
    const auto part = findLocked(next);
    if (!part) {
      return Result::kInvalidValue;
    }
    part->accessible = true;
    next = part->base() + part->size();
  }
  return Result::kSuccess;
}

int Memory::makeRange(const std::vector<AllocationPtr>& parts) {
  const int fd = memfd_create("fake-cuda-range", MFD_CLOEXEC);
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0) {
    return -1;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  auto& range = ranges_[info.st_ino];
  range.clear();
  for (const auto& part : parts) {
    range.push_back(part->physical);
  }
  return fd;
}

void* Memory::mapRange(int fd, size_t& size) {
  struct stat info {};
  const std::lock_guard<std::mutex> guard(mutex_);
  if (fstat(fd, &info) != 0 || !ranges_.contains(info.st_ino)) {
    return nullptr;
  }
  const auto& parts = ranges_.at(info.st_ino);
  size = 0;
  for (const auto& part : parts) {
    size += part->size;
  }
  auto* const whole = static_cast<std::byte*>(
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  size_t at = 0;
  for (const auto& part : parts) {
    mmap(
        whole + at,
        part->size,
        PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_FIXED,
        part->fd,
        0);
    at += part->size;
  }
  return whole;
}

int Memory::handleCount() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return static_cast<int>(handles_.size());
}

} // namespace fake_cuda
