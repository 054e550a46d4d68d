#include "base/status.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

namespace dlslime {

std::string_view errorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kUnusable:
      return "unusable";
    case ErrorCode::kTruncated:
      return "truncated";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kPeerFailed:
      return "peer failed";
    case ErrorCode::kTransportFailed:
      return "transport failed";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kExhausted:
      return "exhausted";
    case ErrorCode::kDenied:
      return "denied";
    case ErrorCode::kNotJoined:
      return "not joined";
    case ErrorCode::kOwnFault:
      return "own fault";
    case ErrorCode::kPeerFault:
      return "peer fault";
  }
  return "unknown";
}

Status::Status(ErrorCode code, std::string message) {
  if (code != ErrorCode::kOk) {
    detail_ = std::make_shared<const Detail>(Detail{code, std::move(message)});
  }
}

ErrorCode Status::code() const noexcept {
  return detail_ ? detail_->code : ErrorCode::kOk;
}

const std::string& Status::message() const noexcept {
  static const std::string kNoMessage;
  return detail_ ? detail_->message : kNoMessage;
}

std::string errnoText(int error) {
  return "errno " + std::to_string(error) + " (" + std::strerror(error) + ")";
}

bool isRefusal(int error) {
  return error == EPERM || error == EACCES || error == ENOSYS;
}

void throwErrno(std::string_view what, int error) {
  const bool descriptors = error == EMFILE || error == ENFILE;
  throw Error(
      descriptors ? ErrorCode::kExhausted : ErrorCode::kUnavailable,
      std::string(what) + ": " + errnoText(error) +
          (descriptors ? ", " + descriptorLimitText() : ""));
}

std::string descriptorLimitText() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return "pid " + std::to_string(getpid()) + " may have " +
      std::to_string(limit.rlim_cur) +
      " descriptors: raise the limit (ulimit -n)";
}

const Status& outOfMemory() {
  static const Status made(
      ErrorCode::kExhausted, "this process has no memory left");
  return made;
}

Status statusOf(const std::exception& error) {
  if (const auto* const ours = dynamic_cast<const Error*>(&error)) {
    return ours->status();
  }
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr &&
      system->code() == std::errc::resource_unavailable_try_again) {
    return {
        ErrorCode::kExhausted,
        std::string("no thread can be started: ") + error.what() +
            "; raise the limit of processes (ulimit -u, or the container's)"};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return outOfMemory();
  }
  return {ErrorCode::kTransportFailed, error.what()};
}

} // namespace dlslime
