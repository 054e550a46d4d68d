#include "torch_ext/c10d/torch_carrier.h"

#include <ATen/ATen.h>

#include "base/status.h"
#include "engine/engine.h"
#include "torch_ext/store/pair_store.h"

namespace dlslime {

namespace {

constexpr int kTag = 0;
// Limit for both ends to come.
constexpr milliseconds kSetupTime{60000};

at::Tensor asTensor(const std::byte* data, size_t size) {
  return at::from_blob(
      const_cast<std::byte*>(data), {static_cast<int64_t>(size)}, at::kByte);
}

[[noreturn]] void throwAborted() {
  throw Error(ErrorCode::kCancelled, "aborted");
}

} // namespace

// Checks the network interfaces for Gloo early: an error would otherwise come
// late, and at a single end.
void TorchCarrierSource::require() {
  if (!interfaces_.empty()) {
    Engine::ownAddresses(interfaces_, setting_);
  }
}

std::unique_ptr<gloo::Carrier> TorchCarrierSource::make(
    const std::string& /*nonce*/,
    int end,
    const OpenSideSocket& side) {
  const auto store = c10::make_intrusive<PairStore>(
      side(deadlineAfter(kSetupTime)), kSetupTime);
  auto group = make_(store, end, kSetupTime);
  store->finish();
  return std::make_unique<TorchCarrier>(std::move(group), 1 - end);
}

void TorchCarrier::run(
    c10::intrusive_ptr<c10d::Work>& slot,
    const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
  c10::intrusive_ptr<c10d::Work> work;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (aborted_) {
      throwAborted();
    }
    work = start();
    slot = work;
  }
  work->wait();
  const std::lock_guard<std::mutex> guard(mutex_);
  slot.reset();
  if (aborted_) {
    throwAborted(); // Gloo's aborted wait() returns quietly
  }
}

void TorchCarrier::send(const std::byte* data, size_t size) {
  std::vector<at::Tensor> tensors{asTensor(data, size)};
  run(sending_, [&] { return group_->send(tensors, peer_, kTag); });
}

void TorchCarrier::receive(std::byte* data, size_t size) {
  std::vector<at::Tensor> tensors{asTensor(data, size)};
  run(receiving_, [&] { return group_->recv(tensors, peer_, kTag); });
}

void TorchCarrier::abort() noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  aborted_ = true;
  for (const auto& work : {sending_, receiving_}) {
    if (work) {
      try {
        work->abort();
      } catch (const std::exception&) {
        // The work has ended already.
      }
    }
  }
}

} // namespace dlslime
