#include "torch_ext/support/flight_dump.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "base/log.h"
#include "base/unique_fd.h"
#include "torch_ext/support/flight_pickle.h"

namespace dlslime {

namespace {

// Makes the folder, for this user alone. Throws Error unless it is so.
void makeFolder(std::string folder) {
  struct stat info {};
  while (folder.size() > 1 && folder.back() == '/') { // lstat() would follow
    folder.pop_back();
  }
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throwErrno("cannot make the folder " + folder, errno);
  }
  if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) ||
      info.st_uid != geteuid()) {
    throw Error(
        ErrorCode::kUnavailable,
        folder + " is no folder of this user: set DLSLIME_FLIGHT_DIR");
  }
}

void writeFile(const std::string& path, const std::string& bytes) {
  const UniqueFd file(open(
      path.c_str(),
      O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
      0600));
  // A file that is there already may be readable by others.
  if (!file || fchmod(file.get(), 0600) != 0) {
    throwErrno("cannot write " + path, errno);
  }
  for (size_t at = 0; at < bytes.size();) {
    const auto put = write(file.get(), bytes.data() + at, bytes.size() - at);
    if (put < 0 && errno != EINTR) {
      throwErrno("cannot write " + path, errno);
    }
    at += put > 0 ? static_cast<size_t>(put) : 0;
  }
}

bool anyUnderWay(const FlightLog& log) {
  return std::any_of(
      log.records.begin(), log.records.end(), [](const FlightRecord& record) {
        return record.state == FlightRecord::State::kPosted;
      });
}

// Returns the folder that the settings name, or else one of the user.
std::string usualFolder(const Config& config) {
  if (!config.flightDir.empty()) {
    return config.flightDir;
  }
  const char* const temporary = std::getenv("TMPDIR");
  return (temporary != nullptr && *temporary != '\0' ? std::string(temporary)
                                                     : "/tmp") +
      "/dlslime_flight_" + std::to_string(geteuid());
}

FlightFiles writeLog(const FlightLog& log, const std::string& folder) {
  makeFolder(folder);
  const auto rank = firstGlobalRank();
  const auto number = std::to_string(rank ? *rank : uint64_t(getpid()));
  FlightFiles files{
      folder + "/unfinished_rank_" + number, folder + "/all_rank_" + number};
  writeFile(files.unfinished, pickledFlightLog(log, true));
  writeFile(files.all, pickledFlightLog(log, false));
  return files;
}

// Causes for which files were written.
class Told {
 public:
  bool has(const std::string& cause) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return causes_.count(cause) != 0;
  }
  // Returns true at the first call with the cause.
  bool add(const std::string& cause) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return causes_.insert(cause).second;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> causes_;
};

Told& told() {
  static auto* const all = new Told; // a thread may outlive main()
  return *all;
}

void writeAndTell(
    const FlightLog& log,
    const std::string& folder,
    const std::string& cause) {
  const auto files = writeLog(log, folder);
  logWarning(
      cause + ": the last " + std::to_string(log.records.size()) +
      " operations are in " + files.all + ", those under way in " +
      files.unfinished + " (for torchfrtrace, with the files of all ranks)");
}

} // namespace

FlightFiles writeFlightLog(Engine& engine, const std::string& folder) {
  return writeLog(
      engine.flightLog(),
      folder.empty() ? usualFolder(engine.config()) : folder);
}

void dumpFlightLog(Engine& engine, const std::string& cause) noexcept {
  try {
    if (told().has(cause)) {
      return;
    }
    const auto log = engine.flightLog();
    if (anyUnderWay(log) && told().add(cause)) {
      writeAndTell(log, usualFolder(engine.config()), cause);
    }
  } catch (const std::exception& error) {
    logWarning(cause + ", and no flight record is written: " + error.what());
  }
}

namespace {

int& requests() {
  static int fd = -1; // eventfd, written by the handler
  return fd;
}

pid_t& owner() {
  static pid_t pid = 0; // of the process with the thread
  return pid;
}

// A forked child has the handler and the descriptor, but not the thread.
void onSignal(int /*signal*/) {
  const int error = errno;
  const uint64_t one = 1;
  if (getpid() == owner()) {
    [[maybe_unused]] const auto put = write(requests(), &one, sizeof(one));
  }
  errno = error;
}

// Writes the files even if no operation is under way: torch's analyser wants a
// file of each rank.
void answerRequest(const std::string& cause) {
  try {
    if (const auto engine = Engine::existing()) {
      writeAndTell(engine->flightLog(), usualFolder(engine->config()), cause);
    }
  } catch (const std::exception& error) {
    logWarning(cause + ", and no flight record is written: " + error.what());
  }
}

void answerRequests() {
  for (int round = 1;; ++round) {
    uint64_t count = 0;
    if (read(requests(), &count, sizeof(count)) < 0) {
      if (errno == EINTR) {
        continue;
      }
      return;
    }
    answerRequest("signal number " + std::to_string(round));
  }
}

} // namespace

void dumpFlightLogAt(const std::string& signal) {
  static std::once_flag once;
  const int number = signal == "USR1" ? SIGUSR1 : SIGUSR2;
  std::call_once(once, [number] {
    requests() = eventfd(0, EFD_CLOEXEC);
    if (requests() < 0) {
      throwErrno("cannot create an eventfd", errno);
    }
    owner() = getpid();
    std::thread(answerRequests).detach();
    struct sigaction action {};
    action.sa_handler = onSignal;
    action.sa_flags = SA_RESTART;
    sigaction(number, &action, nullptr);
  });
}

} // namespace dlslime
