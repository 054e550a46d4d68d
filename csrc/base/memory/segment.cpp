#include "base/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <utility>

#include "base/status.h"

namespace dlslime {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
constexpr long kTmpfs = 0x01021994; // TMPFS_MAGIC
constexpr int kBoth = PROT_READ | PROT_WRITE;

UniqueFd makeMemory(size_t size) {
  UniqueFd fd(memfd_create("dlslime", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    throwErrno("memfd_create failed", errno);
  }
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    throwErrno("cannot size a shared segment", errno);
  }
  return fd;
}

void requireMappable(int fd, size_t size) {
  struct stat info {};
  struct statfs system {};
  if (fstat(fd, &info) != 0 || fstatfs(fd, &system) != 0) {
    throwErrno("cannot inspect the peer's shared segment", errno);
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (static_cast<size_t>(info.st_size) == size && seals >= 0 &&
      (seals & F_SEAL_SHRINK) != 0 && system.f_type == kTmpfs) {
    return;
  }
  throw Error(
      ErrorCode::kPeerFailed,
      "the peer's shared segment is refused: " + std::to_string(info.st_size) +
          " bytes with seals " + std::to_string(seals) +
          (system.f_type == kTmpfs ? "" : " outside of tmpfs") + ", expected " +
          std::to_string(size) + " bytes in tmpfs, sealed against shrinking");
}

} // namespace

Segment::Segment(UniqueFd fd, size_t size, int protection)
    : fd_(std::move(fd)), size_(size) {
  void* const address =
      mmap(nullptr, size, protection, MAP_SHARED, fd_.get(), 0);
  if (address == MAP_FAILED) {
    throwErrno("cannot map a shared segment", errno);
  }
  data_ = static_cast<std::byte*>(address);
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_) {}

Segment::~Segment() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

Segment Segment::create(size_t size) {
  auto fd = makeMemory(size);
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    throwErrno("cannot seal a shared segment", errno);
  }
  return {std::move(fd), size, kBoth};
}

Segment Segment::createForReaders(size_t size) {
  Segment made(makeMemory(size), size, kBoth);
  const int fd = made.fd_.get();
  if (fcntl(fd, F_ADD_SEALS, kSeals | F_SEAL_FUTURE_WRITE) != 0 &&
      (errno != EINVAL || fcntl(fd, F_ADD_SEALS, kSeals) != 0)) {
    throwErrno("cannot seal a shared segment", errno);
  }
  return made;
}

Segment Segment::adopt(UniqueFd fd, size_t size) {
  requireMappable(fd.get(), size);
  return {std::move(fd), size, kBoth};
}

Segment Segment::adoptForReading(UniqueFd fd, size_t size) {
  requireMappable(fd.get(), size);
  return {std::move(fd), size, PROT_READ};
}

UniqueFd Segment::duplicateFd() const {
  UniqueFd copy(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) {
    throwErrno("cannot duplicate a segment's descriptor", errno);
  }
  return copy;
}

} // namespace dlslime
