#include "engine/two_sided/receive_copies.h"

#include "base/memory/guarded_copy.h"
#include "base/memory/stream_copy.h"

namespace dlslime {

namespace {

// Size of an L2 cache, beyond which stores past the cache pay: 2,048 messages
// of 64 KiB in one batch take 24 us each by memcpy and 18 us by streamCopy(),
// and messages of 16 KiB take as long both ways. A ping-pong of 64 KiB would be
// slower by streamCopy(), 13 us against 11 us.
constexpr uint64_t kMostCachedBytes = 1024 * 1024;
constexpr size_t kLeastStreamed = 32 * 1024;

Status copyGuarded(std::byte* to, ByteSpan bytes) {
  const auto fault = writeGuarded(to, bytes);
  return fault == Fault::kNone ? Status() : statusOf({true, fault}, false);
}

} // namespace

// Stores messages past the cache for a caller that collects thousands before
// looking at the first: no message would be found in the cache.
Status ReceiveCopies::copyIn(
    const OperationPtr& receive,
    uint64_t offset,
    ByteSpan payload) const {
  if (receive->ofDevice()) {
    upload(receive, offset, payload);
    return {};
  }
  const auto view = receive->view();
  auto* const destination = view.data + offset;
  if (view.mayFault) {
    return copyGuarded(destination, payload);
  }
  if (payload.size() >= kLeastStreamed &&
      completions_.unfetchedBytes() > kMostCachedBytes) {
    streamCopy(destination, payload.data(), payload.size());
    publishStores();
  } else {
    copyBytes(destination, payload.data(), payload.size());
  }
  completions_.noteDelivered(payload.size());
  return {};
}

void ReceiveCopies::upload(
    const OperationPtr& receive,
    uint64_t offset,
    ByteSpan payload) const {
  const auto view = receive->view();
  const std::span<std::byte> place(view.data + offset, payload.size());
  gpus_.uploads().start(
      *view.accelerator,
      view.device,
      payload,
      {&place, 1},
      completions_.userOf(receive));
}

Status ReceiveCopies::copyKept(const OperationPtr& receive, ByteSpan message)
    const {
  const auto view = receive->view();
  if (view.onDevice()) {
    upload(receive, 0, message);
  } else if (view.mayFault) {
    return copyGuarded(view.data, message);
  } else {
    copyBytes(view.data, message.data(), message.size());
  }
  return {};
}

Status ReceiveCopies::whyFailed(
    const Operation& receive,
    int source,
    const Status& status) {
  if (status.ok()) {
    return status; // most messages need no text
  }
  const auto what = receive.describe() + " failed: ";
  switch (status.code()) {
    case ErrorCode::kOwnFault:
      return {
          ErrorCode::kTransportFailed,
          what + "this process's memory " + status.message()};
    case ErrorCode::kPeerFault:
      return {
          ErrorCode::kTransportFailed,
          what + "the memory of " + receive.nameOf(source) + " " +
              status.message()};
    default:
      return {status.code(), what + status.message()};
  }
}

} // namespace dlslime
