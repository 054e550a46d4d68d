#include "faults/fault_plan.h"

#include <execinfo.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "base/status.h"

namespace dlslime::testing {

namespace {

// The plan does not change between two calls of armFaults().
std::atomic<CallRecord*> armed{nullptr};
Fault wanted;
std::atomic<uint64_t> counts[kCalls];
std::atomic<uint64_t> failures{0};
thread_local ThreadRole roleOfThread = ThreadRole::kTest;

constexpr int kUnreachable = static_cast<int>(ErrorCode::kUnavailable);
constexpr int kBroken = static_cast<int>(ErrorCode::kTransportFailed);
// CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_UNKNOWN.
constexpr int kCudaErrors[] = {2, 719, 999};

} // namespace

const std::vector<CallKind>& callKinds() {
  static const std::vector<CallKind> kinds{
      {Call::kSocket, "socket", {EMFILE, ENFILE, EACCES, ENOBUFS}, true},
      {Call::kBind, "bind", {EADDRINUSE, EACCES, ENOMEM}, true},
      {Call::kListen, "listen", {EADDRINUSE, EOPNOTSUPP}},
      {Call::kAccept, "accept4", {EMFILE, ENFILE, ECONNABORTED, ENOBUFS}, true},
      {Call::kConnect, "connect", {ECONNREFUSED, EAGAIN, ENETUNREACH}, true},
      {Call::kGetSocketOption, "getsockopt", {ENOPROTOOPT, ENOBUFS}},
      {Call::kSetSocketOption, "setsockopt", {ENOPROTOOPT, ENOMEM}, true},
      {Call::kGetSocketName, "getsockname", {ENOBUFS}},
      {Call::kGetPeerName, "getpeername", {ENOTCONN, ENOBUFS}},
      {Call::kSend, "send", {ENOBUFS, ENOMEM}},
      {Call::kSendMessage,
       "sendmsg",
       {EAGAIN, EPIPE, ENOBUFS, ETOOMANYREFS, EINTR},
       true},
      {Call::kReceive, "recv", {EAGAIN, ECONNRESET, EINTR, ENOMEM}},
      {Call::kReceiveMessage,
       "recvmsg",
       {EAGAIN, ECONNRESET, EINTR, ENOMEM, EMFILE}},
      {Call::kPoll, "poll", {EINTR, ENOMEM}},
      {Call::kEpollCreate, "epoll_create1", {EMFILE, ENFILE, ENOMEM}},
      {Call::kEpollControl, "epoll_ctl", {ENOSPC, ENOMEM}, true},
      {Call::kEpollWait, "epoll_wait", {EINTR}},
      {Call::kEventDescriptor, "eventfd", {EMFILE, ENFILE, ENOMEM}, true},
      {Call::kMemoryFile, "memfd_create", {EMFILE, ENFILE, ENOMEM}, true},
      {Call::kTruncate, "ftruncate", {ENOSPC, ENOMEM}, true},
      {Call::kFileControl, "fcntl", {EMFILE, EPERM, EBUSY}, true},
      {Call::kFileStatus, "fstat", {ENOMEM}},
      {Call::kFileSystemStatus, "fstatfs", {ENOSYS, ENOMEM}},
      {Call::kMap, "mmap", {ENOMEM, EACCES, ENFILE}, true},
      {Call::kAdvise, "madvise", {ENOMEM, EINVAL}},
      {Call::kReadProcess,
       "process_vm_readv",
       {EPERM, ENOMEM, EFAULT, ESRCH},
       true},
      {Call::kWriteProcess,
       "process_vm_writev",
       {EPERM, ENOMEM, EFAULT, ESRCH},
       true},
      {Call::kFileTransfer, "pread and pwrite", {ENOSPC, ENOMEM, EINTR}, true},
      {Call::kProcessDescriptor, "pidfd", {EMFILE, EPERM, ENOSYS}, true},
      {Call::kRandom, "getrandom", {EINTR, ENOSYS}},
      {Call::kInterfaces, "getifaddrs", {EMFILE, ENOMEM}},
      {Call::kAlignedAllocation, "aligned_alloc", {ENOMEM}, true},
      {Call::kThread, "thread", {EAGAIN}, true},
      {Call::kCallerAllocation, "new of the caller", {ENOMEM}},
      {Call::kEngineAllocation, "new of the engine", {ENOMEM}},
      {Call::kStore, "store", {kUnreachable}, true},
      {Call::kCarrier, "carrier", {kBroken}, true},
      {Call::kVerbs, "verbs", {ENOMEM, EINVAL, EMFILE, EIO}, true},
      {Call::kPostWork, "post", {ENOMEM, EINVAL}},
      {Call::kArmQueue, "req_notify_cq", {EIO}},
      {Call::kPollQueue, "poll_cq", {EIO}},
      {Call::kCuda,
       "cuda",
       {std::begin(kCudaErrors), std::end(kCudaErrors)},
       true},
  };
  return kinds;
}

void armFaults(const Fault* fault, CallRecord* record) {
  for (auto& count : counts) {
    count = 0;
  }
  failures = 0;
  wanted = fault != nullptr ? *fault : Fault{};
  wanted.times = fault != nullptr ? fault->times : 0;
  void* frame = nullptr;
  backtrace(&frame, 1); // loads libgcc while allocations still succeed
  armed = record;
}

void disarmFaults() {
  auto* const record = armed.exchange(nullptr);
  for (int i = 0; i < kCalls; ++i) {
    record->counts[i] = counts[i];
  }
}

int faultOf(Call call) noexcept {
  auto* const record = armed.load(std::memory_order_acquire);
  if (record == nullptr || roleOfThread == ThreadRole::kTest) {
    return 0;
  }
  const auto n = ++counts[static_cast<int>(call)];
  if (call != wanted.call || n < wanted.n || n - wanted.n >= wanted.times) {
    return 0;
  }
  if (failures++ == 0) {
    const RoleScope own(ThreadRole::kTest);
    record->frames = backtrace(record->stack, CallRecord::kMostFrames);
  }
  record->failed = failures;
  return wanted.error;
}

bool allocationFails() noexcept {
  return roleOfThread != ThreadRole::kTest &&
      faultOf(
          roleOfThread == ThreadRole::kCaller ? Call::kCallerAllocation
                                              : Call::kEngineAllocation) != 0;
}

ThreadRole setThreadRole(ThreadRole role) noexcept {
  return std::exchange(roleOfThread, role);
}

} // namespace dlslime::testing
