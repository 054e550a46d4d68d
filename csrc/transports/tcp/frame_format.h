#pragma once

#include <cerrno>

#include "base/status.h"
#include "transports/tcp/frame_stream.h"

// What both halves of a FrameStream know of frames, and of sockets.

namespace dlslime::tcp {

// A bit of `payloadSize`: behind the payload comes a verdict of four bytes. A
// frame with kVoid was given up amid its payload, and is to be taken for none.
constexpr uint32_t kVerdictFollows = uint32_t{1} << 31;
constexpr uint32_t kGood = 0;
constexpr uint32_t kVoid = 1;

constexpr size_t kMostFrameBytes =
    sizeof(MessageHeader) + FrameStream::kMostPayloadBytes + sizeof(kGood);
constexpr size_t kIncomingBytes = 4 * kMostFrameBytes;
// What a frame that goes to its places may have before them.
constexpr size_t kMostBefore = 4 * 1024;

// The other end does not close it while both work.
inline ErrorCode codeOf(int error) {
  return error == ECONNRESET || error == EPIPE ? ErrorCode::kPeerFailed
                                               : ErrorCode::kTransportFailed;
}

inline bool wouldBlock(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

} // namespace dlslime::tcp
