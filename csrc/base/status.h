#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/library/api.h"
#include "base/threads/thread_safety.h"

namespace dlslime {

enum class ErrorCode : uint8_t {
  kOk = 0,
  kInvalidArgument, // refused at the call; nothing was queued
  kUnusable, // every call is refused: forked child, or suspended
  kTruncated, // a message was longer than the receive's memory
  kTimeout,
  kPeerFailed, // the peer died, left or refused us
  kTransportFailed, // the route broke while both ends live
  kCancelled, // abort() or shutdown() on this side
  kUnavailable, // the machine lacks or forbids something
  kExhausted, // no descriptor, thread or memory is free, but may be later
  // The codes below never reach users.
  kDenied, // the kernel no longer permits the access
  kNotJoined, // the peer's process answers, but is not (yet) in the group
  kOwnFault, // local memory can't be touched: see fault.h
  kPeerFault, // the peer's memory can't be touched: see fault.h
};

std::string_view errorCodeName(ErrorCode code);

// Outcome of an operation: ok, or a code with a text for the user. Copying is
// cheap: ok holds nothing, and copies of an error share the text.
class [[nodiscard]] DLSLIME_API Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message);

  bool ok() const noexcept {
    return detail_ == nullptr;
  }
  ErrorCode code() const noexcept;
  const std::string& message() const noexcept;

 private:
  struct Detail {
    ErrorCode code;
    std::string message;
  };
  std::shared_ptr<const Detail> detail_;
};

// Returns the status of an Error, kExhausted for std::bad_alloc and for a
// thread that can't be started, and kTransportFailed with the exception's text
// for the rest.
Status statusOf(const std::exception& error);

// Returns kExhausted for want of memory; allocates at the first call only.
const Status& outOfMemory();

// Returns the result of `make`, or outOfMemory() if `make` runs out of memory:
// an operation must end, if need be with a shorter text. `make` may read what
// the caller's locks guard.
template <typename Make>
Status inWords(const Make& make) noexcept NO_THREAD_SAFETY_ANALYSIS {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return outOfMemory();
  }
}

// Exception of calls setting something up; an operation in flight ends with a
// Status instead.
class DLSLIME_API Error : public std::runtime_error {
 public:
  explicit Error(Status status)
      : std::runtime_error(status.message()), status_(std::move(status)) {}
  Error(ErrorCode code, std::string message)
      : Error(Status(code, std::move(message))) {}

  const Status& status() const noexcept {
    return status_;
  }

 private:
  Status status_;
};

// Returns "errno 13 (Permission denied)".
DLSLIME_API std::string errnoText(int error);

// Returns whether `error` means that a sandbox, a setting or a change of user
// forbids a system call: retrying is of no use, but a different way may be
// left.
bool isRefusal(int error);

// Returns "pid 7 may have 1024 descriptors: raise the limit (ulimit -n)".
std::string descriptorLimitText();

// Throws Error{kUnavailable} with `what` and errnoText(), or Error{kExhausted}
// for want of descriptors.
[[noreturn]] DLSLIME_API void throwErrno(std::string_view what, int error);

} // namespace dlslime
