#pragma once

#include <cstdint>
#include <vector>

namespace dlslime::testing {

// What can be made to fail. An entry stands for one function, or for all
// functions of one library.
enum class Call : uint8_t {
  kSocket,
  kBind,
  kListen,
  kAccept,
  kConnect,
  kGetSocketOption,
  kSetSocketOption,
  kGetSocketName,
  kGetPeerName,
  kSend,
  kSendMessage,
  kReceive,
  kReceiveMessage,
  kPoll,
  kEpollCreate,
  kEpollControl,
  kEpollWait,
  kEventDescriptor,
  kMemoryFile,
  kTruncate,
  kFileControl,
  kFileStatus,
  kFileSystemStatus,
  kMap,
  kAdvise,
  kReadProcess,
  kWriteProcess,
  kFileTransfer, // pread, pwrite, preadv, pwritev
  kProcessDescriptor, // pidfd_open, pidfd_getfd
  kRandom,
  kInterfaces,
  kAlignedAllocation,
  kThread,
  kCallerAllocation, // operator new, on the thread that calls the engine
  kEngineAllocation, // the same, on threads that the engine has started
  kStore,
  kCarrier,
  kVerbs, // all but those below
  kPostWork, // post_send, post_recv
  kArmQueue, // req_notify_cq
  kPollQueue, // poll_cq
  kCuda,
};
constexpr int kCalls = static_cast<int>(Call::kCuda) + 1;

struct CallKind {
  Call call;
  const char* name;
  // Values of errno, or the library's own codes, that such a call ends with.
  std::vector<int> errors;
  // Whether a lack lasts: it is tried that all calls from the n-th on fail.
  bool lasting = false;
};
const std::vector<CallKind>& callKinds();

// The n-th call of a kind ends with an error, and those after it: `times` in
// all.
struct Fault {
  Call call = Call::kSocket;
  uint64_t n = 1;
  uint64_t times = 1;
  int error = 0;
};

// What the calls of this process have come to; in memory that the process
// shares with the one that has started it, which outlives it.
struct CallRecord {
  static constexpr int kMostFrames = 40;
  uint64_t counts[kCalls];
  uint64_t failed; // calls that were made to fail
  int frames; // of the first of them
  void* stack[kMostFrames];
};

// Counts calls in `record` from now on, and has the fault's fail.
void armFaults(const Fault* fault, CallRecord* record);
void disarmFaults();
// Called in front of each call: the error with which it ends, or 0.
int faultOf(Call call) noexcept;
// Of operator new, on whatever thread it is called.
bool allocationFails() noexcept;

// Whose calls are counted: the engine's, and neither the test's nor those that
// a fake makes.
enum class ThreadRole : uint8_t { kTest, kCaller, kEngine };
// Of the calling thread; returns what it was.
ThreadRole setThreadRole(ThreadRole role) noexcept;
class RoleScope {
 public:
  explicit RoleScope(ThreadRole role) noexcept : before_(setThreadRole(role)) {}
  ~RoleScope() {
    setThreadRole(before_);
  }
  RoleScope(const RoleScope&) = delete;
  RoleScope& operator=(const RoleScope&) = delete;

 private:
  const ThreadRole before_;
};

} // namespace dlslime::testing
