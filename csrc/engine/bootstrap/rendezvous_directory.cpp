#include "engine/bootstrap/rendezvous_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "base/status.h"
#include "engine/bootstrap/listener.h"

namespace dlslime {

namespace {
// Age from which a socket without a process counts as left behind: a younger
// one may be between bind() and its first use.
constexpr time_t kSettled = 10; // seconds
} // namespace

std::shared_ptr<const RendezvousDirectory> RendezvousDirectory::open(
    const std::string& path,
    const std::string& setting) {
  if (path.empty()) {
    return nullptr;
  }
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        setting + " can't be used: " + errnoText(errno) +
            "; mount the directory into each container, writable for its "
            "user, or unset the variable");
  }
  auto id = std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
  return std::shared_ptr<const RendezvousDirectory>(
      new RendezvousDirectory(std::move(fd), std::move(id), setting));
}

UnixAddress RendezvousDirectory::address(const std::string& name) const {
  return UnixAddress::ofPath(
      "/proc/self/fd/" + std::to_string(fd_.get()) + "/" + name);
}

void RendezvousDirectory::remove(const std::string& name) const noexcept {
  unlinkat(fd_.get(), name.c_str(), 0);
}

bool RendezvousDirectory::isStale(const std::string& name) const {
  struct stat info {};
  if (name.rfind(Listener::kUsualPrefix, 0) != 0 ||
      fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 ||
      !S_ISSOCK(info.st_mode) || info.st_uid != geteuid() ||
      info.st_mtime + kSettled > std::time(nullptr)) {
    return false;
  }
  // A datagram socket can't be connected to a listener: the kernel refuses the
  // type if a process has the listener, and the connection if none has.
  const UniqueFd trial(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto place = address(name);
  return trial && connect(trial.get(), place.get(), place.size()) != 0 &&
      errno == ECONNREFUSED;
}

void RendezvousDirectory::removeStale() const {
  // A descriptor of its own: reading moves the position in the directory.
  const int fd = openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(
      fd < 0 ? nullptr : fdopendir(fd), &closedir);
  if (!entries && fd >= 0) {
    close(fd);
  }
  while (const auto* entry = entries ? readdir(entries.get()) : nullptr) {
    if (isStale(entry->d_name)) {
      remove(entry->d_name);
    }
  }
}

} // namespace dlslime
