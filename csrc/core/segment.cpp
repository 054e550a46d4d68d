#include "core/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "core/status.h"

namespace dlslime {

namespace {
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
}

Segment::Segment(UniqueFd fd, size_t size) : fd_(std::move(fd)), size_(size) {
  void* const address =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
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
  UniqueFd fd(memfd_create("dlslime", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    throwErrno("memfd_create failed", errno);
  }
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    throwErrno("cannot size a shared segment", errno);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    throwErrno("cannot seal a shared segment", errno);
  }
  return {std::move(fd), size};
}

Segment Segment::adopt(UniqueFd fd, size_t size) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) {
    throwErrno("cannot inspect the peer's shared segment", errno);
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (static_cast<size_t>(info.st_size) != size || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the peer's shared segment is refused: " +
            std::to_string(info.st_size) + " bytes with seals " +
            std::to_string(seals) + ", expected " + std::to_string(size) +
            " bytes sealed against shrinking");
  }
  return {std::move(fd), size};
}

UniqueFd Segment::duplicateFd() const {
  UniqueFd copy(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) {
    throwErrno("cannot duplicate a segment's descriptor", errno);
  }
  return copy;
}

} // namespace dlslime
