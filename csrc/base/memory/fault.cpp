#include "base/memory/fault.h"

namespace dlslime {

namespace {
constexpr int kFaultBit = 1 << 16; // beyond all errnos
constexpr int kLocalBit = 1 << 17;
} // namespace

std::string faultText(Fault fault, bool write) {
  const std::string what = write ? "can't be written: " : "can't be read: ";
  switch (fault) {
    case Fault::kReadOnly:
      return what + "it is read-only";
    case Fault::kNoScratch:
      return what + "neither a descriptor nor memory is left for the copy";
    case Fault::kNone:
    case Fault::kGone:
      break;
  }
  return what + "it has been unmapped or protected, or its file was cut short";
}

int codeOf(CopyFault fault) {
  return kFaultBit | (fault.local ? kLocalBit : 0) |
      static_cast<int>(fault.fault);
}

CopyFault copyFaultOf(int code) {
  if ((code & kFaultBit) == 0) {
    return {};
  }
  const auto number = code & 0xff;
  const bool known = number == static_cast<int>(Fault::kReadOnly) ||
      number == static_cast<int>(Fault::kNoScratch);
  return {
      (code & kLocalBit) != 0,
      known ? static_cast<Fault>(number) : Fault::kGone};
}

Status statusOf(CopyFault fault, bool write) {
  return {
      fault.local ? ErrorCode::kOwnFault : ErrorCode::kPeerFault,
      faultText(fault.fault, write != fault.local)};
}

} // namespace dlslime
