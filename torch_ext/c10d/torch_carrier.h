#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <mutex>

#include "base/config.h"
#include "interface/carrier.h"

namespace dlslime {

// Makes a Gloo group of two ranks over a separate store, as rank `end`. Blocks
// until both ends have come, at most for `limit`.
using MakePairGroup = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store,
    int end,
    std::chrono::milliseconds limit)>;

class TorchCarrierSource final : public gloo::CarrierSource {
 public:
  TorchCarrierSource(MakePairGroup make, const Config& config)
      : make_(std::move(make)),
        interfaces_(config.interfaces),
        setting_(config.interfacesSetting) {}
  void require() override;
  std::unique_ptr<gloo::Carrier>
  make(const std::string& nonce, int end, const OpenSideSocket& side) override;

 private:
  const MakePairGroup make_;
  const std::string interfaces_, setting_;
};

// Carries bytes as tensors through a Gloo group of two.
class TorchCarrier final : public gloo::Carrier {
 public:
  TorchCarrier(c10::intrusive_ptr<c10d::Backend> group, int peer)
      : group_(std::move(group)), peer_(peer) {}

  void send(const std::byte* data, size_t size) override;
  void receive(std::byte* data, size_t size) override;
  void abort() noexcept override;

 private:
  void run(
      c10::intrusive_ptr<c10d::Work>& slot,
      const std::function<c10::intrusive_ptr<c10d::Work>()>& start);

  const c10::intrusive_ptr<c10d::Backend> group_;
  const int peer_;
  std::mutex mutex_;
  // mutex_ guards all members below.
  bool aborted_ = false;
  c10::intrusive_ptr<c10d::Work> sending_, receiving_;
};

} // namespace dlslime
