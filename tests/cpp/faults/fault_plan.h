#pragma once

#include <cstdint>
#include <vector>

namespace dlslime::testing {

// Calls that can be made to fail: an entry stands for a function, or for all
// functions of a library.
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
  kCallerAllocation, // operator new, on the engine's callers
  kEngineAllocation, // operator new, on threads started by the engine
  kStore,
  kCarrier,
  kVerbs, // all verbs except the three below
  kPostWork, // post_send, post_recv
  kArmQueue, // req_notify_cq
  kPollQueue, // poll_cq
  kCuda,
};
constexpr int kCalls = static_cast<int>(Call::kCuda) + 1;

struct CallKind {
  Call call;
  const char* name;
  // Errors to try: values of errno, or the library's own codes.
  std::vector<int> errors;
  // Whether to try a lasting failure, too: all calls from the n-th on.
  bool lasting = false;
};
const std::vector<CallKind>& callKinds();

// Makes the n-th call of a kind, and the calls after, fail: `times` in all.
struct Fault {
  Call call = Call::kSocket;
  uint64_t n = 1;
  uint64_t times = 1;
  int error = 0;
};

// Record of the calls of a process. In memory shared with the parent process,
// which reads the record afterwards.
struct CallRecord {
  static constexpr int kMostFrames = 40;
  uint64_t counts[kCalls];
  uint64_t failed; // calls made to fail
  int frames; // of the first failed call
  void* stack[kMostFrames];
};

// Counts calls in `record` from now on, and makes the calls of `fault` fail.
void armFaults(const Fault* fault, CallRecord* record);
void disarmFaults();
// Called before each call: returns the error to fail with, or 0.
int faultOf(Call call) noexcept;
// Calls faultOf() for operator new on the calling thread.
bool allocationFails() noexcept;

// Role of a thread. Only calls for the engine count, and neither calls of the
// test nor calls of a fake.
enum class ThreadRole : uint8_t { kTest, kCaller, kEngine };
// Sets the role of the calling thread and returns the role before.
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
