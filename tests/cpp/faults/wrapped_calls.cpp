// Functions called instead of system calls (linker option --wrap): each fails
// by the plan of faults, or calls the system.
#include <ifaddrs.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstddef>

#include "faults/fault_plan.h"

using dlslime::testing::Call;
using dlslime::testing::faultOf;

#define FAULTS_WRAP(call, result, failure, name, parameters, arguments) \
  extern "C" {                                                          \
  result __real_##name parameters;                                      \
  result __wrap_##name parameters;                                      \
  result __wrap_##name parameters {                                     \
    if (const int error = faultOf(Call::call)) {                        \
      errno = error;                                                    \
      return failure;                                                   \
    }                                                                   \
    return __real_##name arguments;                                     \
  }                                                                     \
  }

using Name = sockaddr*;
using ConstName = const sockaddr*;

FAULTS_WRAP(kSocket, int, -1, socket, (int a, int b, int c), (a, b, c))
FAULTS_WRAP(kBind, int, -1, bind, (int a, ConstName b, socklen_t c), (a, b, c))
FAULTS_WRAP(kListen, int, -1, listen, (int a, int b), (a, b))
FAULTS_WRAP(
    kAccept,
    int,
    -1,
    accept4,
    (int a, Name b, socklen_t* c, int d),
    (a, b, c, d))
FAULTS_WRAP(
    kConnect,
    int,
    -1,
    connect,
    (int a, ConstName b, socklen_t c),
    (a, b, c))
FAULTS_WRAP(
    kGetSocketOption,
    int,
    -1,
    getsockopt,
    (int a, int b, int c, void* d, socklen_t* e),
    (a, b, c, d, e))
FAULTS_WRAP(
    kSetSocketOption,
    int,
    -1,
    setsockopt,
    (int a, int b, int c, const void* d, socklen_t e),
    (a, b, c, d, e))
FAULTS_WRAP(
    kGetSocketName,
    int,
    -1,
    getsockname,
    (int a, Name b, socklen_t* c),
    (a, b, c))
FAULTS_WRAP(
    kGetPeerName,
    int,
    -1,
    getpeername,
    (int a, Name b, socklen_t* c),
    (a, b, c))
FAULTS_WRAP(
    kSend,
    ssize_t,
    -1,
    send,
    (int a, const void* b, size_t c, int d),
    (a, b, c, d))
FAULTS_WRAP(
    kSendMessage,
    ssize_t,
    -1,
    sendmsg,
    (int a, const msghdr* b, int c),
    (a, b, c))
FAULTS_WRAP(
    kReceive,
    ssize_t,
    -1,
    recv,
    (int a, void* b, size_t c, int d),
    (a, b, c, d))
FAULTS_WRAP(
    kReceiveMessage,
    ssize_t,
    -1,
    recvmsg,
    (int a, msghdr* b, int c),
    (a, b, c))
FAULTS_WRAP(kPoll, int, -1, poll, (pollfd * a, nfds_t b, int c), (a, b, c))
FAULTS_WRAP(kEpollCreate, int, -1, epoll_create1, (int a), (a))
FAULTS_WRAP(
    kEpollControl,
    int,
    -1,
    epoll_ctl,
    (int a, int b, int c, epoll_event* d),
    (a, b, c, d))
FAULTS_WRAP(
    kEpollWait,
    int,
    -1,
    epoll_wait,
    (int a, epoll_event* b, int c, int d),
    (a, b, c, d))
FAULTS_WRAP(kEventDescriptor, int, -1, eventfd, (unsigned a, int b), (a, b))
FAULTS_WRAP(
    kMemoryFile,
    int,
    -1,
    memfd_create,
    (const char* a, unsigned b),
    (a, b))
FAULTS_WRAP(kTruncate, int, -1, ftruncate, (int a, off_t b), (a, b))
FAULTS_WRAP(kFileControl, int, -1, fcntl, (int a, int b, long c), (a, b, c))
FAULTS_WRAP(
    kFileStatus,
    int,
    -1,
    fstat,
    (int a, struct stat* b), // NOLINT
    (a, b))
FAULTS_WRAP(
    kFileSystemStatus,
    int,
    -1,
    fstatfs,
    (int a, struct statfs* b),
    (a, b))
FAULTS_WRAP(
    kMap,
    void*,
    reinterpret_cast<void*>(-1),
    mmap,
    (void* a, size_t b, int c, int d, int e, off_t f),
    (a, b, c, d, e, f))
FAULTS_WRAP(kAdvise, int, -1, madvise, (void* a, size_t b, int c), (a, b, c))
#define FAULTS_OF_PROCESS \
  (pid_t a,               \
   const iovec* b,        \
   unsigned long c,       \
   const iovec* d,        \
   unsigned long e,       \
   unsigned long f)
FAULTS_WRAP(
    kReadProcess,
    ssize_t,
    -1,
    process_vm_readv,
    FAULTS_OF_PROCESS,
    (a, b, c, d, e, f))
FAULTS_WRAP(
    kWriteProcess,
    ssize_t,
    -1,
    process_vm_writev,
    FAULTS_OF_PROCESS,
    (a, b, c, d, e, f))
FAULTS_WRAP(
    kFileTransfer,
    ssize_t,
    -1,
    pread,
    (int a, void* b, size_t c, off_t d),
    (a, b, c, d))
FAULTS_WRAP(
    kFileTransfer,
    ssize_t,
    -1,
    pwrite,
    (int a, const void* b, size_t c, off_t d),
    (a, b, c, d))
FAULTS_WRAP(
    kFileTransfer,
    ssize_t,
    -1,
    preadv,
    (int a, const iovec* b, int c, off_t d),
    (a, b, c, d))
FAULTS_WRAP(
    kFileTransfer,
    ssize_t,
    -1,
    pwritev,
    (int a, const iovec* b, int c, off_t d),
    (a, b, c, d))
FAULTS_WRAP(
    kRandom,
    ssize_t,
    -1,
    getrandom,
    (void* a, size_t b, unsigned c),
    (a, b, c))
FAULTS_WRAP(kInterfaces, int, -1, getifaddrs, (ifaddrs * *a), (a))
FAULTS_WRAP(
    kAlignedAllocation,
    void*,
    nullptr,
    aligned_alloc,
    (size_t a, size_t b),
    (a, b))

// Only the calls for descriptors of processes fail: the remaining callers
// measure how long a system call takes.
extern "C" {
long __real_syscall(long number, long a, long b, long c);
long __wrap_syscall(long number, long a, long b, long c);
long __wrap_syscall(long number, long a, long b, long c) {
  if (number == SYS_pidfd_open || number == SYS_pidfd_getfd) {
    if (const int error = faultOf(Call::kProcessDescriptor)) {
      errno = error;
      return -1;
    }
  }
  return __real_syscall(number, a, b, c);
}
}
