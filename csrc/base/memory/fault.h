#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace dlslime {

// Reason why memory of the program could not be touched: a processor touching
// the memory gets a signal, a system call an error.
enum class Fault : uint8_t {
  kNone = 0,
  kGone, // unmapped, protected, or beyond the end of its file
  kReadOnly,
  kNoScratch, // not known: neither a descriptor nor memory was left for the
              // copy
};

// Returns, for example, "can't be written: it is read-only"; the caller names
// the subject.
std::string faultText(Fault fault, bool write);

// Fault of a CopyJob, returned by run() as a number beyond all errnos.
struct CopyFault {
  bool local = false; // local memory; else the peer's
  Fault fault = Fault::kNone;
};
int codeOf(CopyFault fault);
// Decodes a number, perhaps from a peer; an errno gives kNone.
CopyFault copyFaultOf(int code);

// Returns kOwnFault or kPeerFault with faultText(). `write` tells the direction
// of the failed copy: to the peer.
Status statusOf(CopyFault fault, bool write);

} // namespace dlslime
