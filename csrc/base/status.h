#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dlslime {

enum class ErrorCode : uint8_t {
  kOk = 0,
  kInvalidArgument, // refused at the call, nothing was queued
  kUnusable, // refused at the call, whatever was asked: forked child, suspended
  kTruncated, // a message was longer than the receive's memory
  kTimeout,
  kPeerFailed, // the peer died, left or refused us
  kTransportFailed, // the route broke while both ends live
  kCancelled, // abort() or shutdown() on this side
  kUnavailable, // something this machine does not have
  kExhausted, // this process has no free descriptor: perhaps it will again
  // Never told to users as such:
  kDenied, // the kernel permits it no longer
  kNotJoined, // the peer's process answers, and is not in the group (yet)
  kOwnFault, // memory of ours can't be touched: see fault.h
  kPeerFault, // the same of the peer's
};

std::string_view errorCodeName(ErrorCode code);

// The outcome of something: ok, or a code with a text for the user. Copying
// is cheap: ok holds nothing, an error shares its text.
class [[nodiscard]] Status {
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

// Of an Error its own; of anything else kTransportFailed, with its text.
Status statusOf(const std::exception& error);

// Takes no memory, but at its first call.
const Status& outOfMemory();

// What `make` returns, or outOfMemory() where there is none for it: what ends
// must end, with fewer words if need be.
template <typename Make>
Status inWords(const Make& make) noexcept {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return outOfMemory();
  }
}

// Thrown by calls that set something up. What is already in flight ends as a
// Status instead.
class Error : public std::runtime_error {
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

// "errno 13 (Permission denied)"
std::string errnoText(int error);

// What a system call says that a sandbox, a setting or a change of user has
// taken away: it is of no use to try again, and another way may be left.
bool isRefusal(int error);

// "pid 7 may have 1024 descriptors: raise the limit (ulimit -n)"
std::string descriptorLimitText();

// Throws Error{kUnavailable} "<what>: errno 13 (Permission denied)", or
// Error{kExhausted} where there is no free descriptor.
[[noreturn]] void throwErrno(std::string_view what, int error);

} // namespace dlslime
