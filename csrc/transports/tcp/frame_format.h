#pragma once

#include <cerrno>

#include "base/status.h"
#include "interface/message.h"

// Format of frames, and errors of sockets, for both halves of a FrameStream.

namespace dlslime::tcp {

constexpr size_t kMostFramePayload = 128 * 1024; // bytes
// Bit of `payloadSize`: a verdict of four bytes follows the payload.
constexpr uint32_t kVerdictFollows = uint32_t{1} << 31;
constexpr uint32_t kGood = 0;
// Verdict of a frame given up in the middle of the payload. The receiver drops
// the frame, as with any verdict but kGood.
constexpr uint32_t kVoid = 1;

constexpr size_t kMostFrameBytes =
    sizeof(MessageHeader) + kMostFramePayload + sizeof(kGood);
constexpr size_t kIncomingBytes = 4 * kMostFrameBytes;
// Most bytes of the payload before the places of a placed frame
// (Placement::from).
constexpr size_t kMostBefore = 4 * 1024;

// Returns the error code for an errno of the socket. A closed socket means a
// failed peer, since neither end closes the socket while both work.
inline ErrorCode codeOf(int error) {
  return error == ECONNRESET || error == EPIPE ? ErrorCode::kPeerFailed
                                               : ErrorCode::kTransportFailed;
}

inline bool wouldBlock(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

} // namespace dlslime::tcp
