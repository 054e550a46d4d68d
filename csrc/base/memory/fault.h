#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace dlslime {

// Why memory of a user could not be touched: a processor that does so gets a
// signal, a system call an error.
enum class Fault : uint8_t {
  kNone = 0,
  kGone, // unmapped, protected, or beyond the end of its file
  kReadOnly,
  kNoScratch, // nothing is known: there was nothing to copy it with
};

// "can't be written: it is read-only", of a subject that the caller names.
std::string faultText(Fault fault, bool write);

// What a CopyJob's run() returns beside errnos.
struct CopyFault {
  bool local = false; // ours; else the peer's
  Fault fault = Fault::kNone;
};
int codeOf(CopyFault fault);
// `code` may be of a peer. kNone: it is an errno.
CopyFault copyFaultOf(int code);

// Of a copy that failed: kOwnFault or kPeerFault, with faultText(). `write`: it
// was to the peer.
Status statusOf(CopyFault fault, bool write);

} // namespace dlslime
