#include "base/memory/guarded_copy.h"
#include "base/memory/stream_copy.h"
#include "engine/two_sided/inbound.h"
#include "engine/two_sided/receiving_group.h"

// How what has come by messages gets into the memory of receives.

namespace dlslime {

namespace {

// An L2 cache's size; and what pays, measured: 2,048 messages of 64 KiB in one
// batch 24 us each by memcpy, 18 us this way, of 16 KiB the same both ways. A
// ping-pong of 64 KiB would be slower, 13 us against 11.
constexpr uint64_t kMostCachedBytes = 1024 * 1024;
constexpr size_t kLeastStreamed = 32 * 1024;

Status copyGuarded(std::byte* to, ByteSpan bytes) {
  const auto fault = writeGuarded(to, bytes);
  return fault == Fault::kNone ? Status() : statusOf({true, fault}, false);
}

} // namespace

// Into a tensor. When the caller collects thousands of messages before it
// looks at one, they leave the cache anyway.
Status Inbound::copyIn(
    const OperationPtr& receive,
    uint64_t offset,
    ByteSpan payload) {
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

// The receive ends when the bytes have arrived.
void Inbound::upload(
    const OperationPtr& receive,
    uint64_t offset,
    ByteSpan payload) {
  const auto view = receive->view();
  const std::span<std::byte> place(view.data + offset, payload.size());
  gpus_.uploads().start(
      *view.accelerator,
      view.device,
      payload,
      {&place, 1},
      completions_.userOf(receive));
}

// The same of what was kept aside, and is in no cache.
Status Inbound::copyWhole(const OperationPtr& receive, ByteSpan message) {
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

// From the peer's GPU to ours, past all processors. False: it can't be.
bool Inbound::pullByGpu(uint64_t pullId, RemoteBuffer source, MemoryView to) {
  if (!to.onDevice()) {
    return false;
  }
  auto& pull = *pulls_.find(pullId);
  const Piece whole{to.data, source.address, to.size};
  pull.byGpu = gpus_.move(
      *to.accelerator,
      to.device,
      source,
      false,
      {&whole, 1},
      [this, pullId](const Status& end) { endPull(pullId, end); });
  return pull.byGpu;
}

// What comes into memory of a GPU without being copied by us.
void Inbound::countOnGpu(ReceivingGroup& group, uint64_t pullId) {
  const auto* const pull = pulls_.find(pullId);
  if (pull != nullptr && pull->receive->ofDevice() && !pull->framed) {
    auto& counters = group.counters(pull->source);
    ++(pull->byGpu ? counters.cudaIpcMessages : counters.gpuDirectMessages);
  }
}

} // namespace dlslime
