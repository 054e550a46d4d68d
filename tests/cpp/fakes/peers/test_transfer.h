#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "engine/one_sided/transfer.h"

namespace dlslime::testing {

// A transfer that counts its ends and releases.
class TestTransfer final : public Transfer {
 public:
  TestTransfer(Kind kind, int peer, std::vector<Part> parts)
      : Transfer(kind, peer, std::move(parts)) {}
  // (local offset, remote offset, length), all in bytes.
  using Pieces = std::vector<std::array<int64_t, 3>>;
  static std::shared_ptr<TestTransfer> make(
      Kind kind,
      int peer,
      const RegionPtr& local,
      const RegionHandle& remote,
      const Pieces& pieces) {
    PieceBuilder builder(*local, remote, kind == Kind::kWrite, pieces.size());
    for (const auto& [here, there, length] : pieces) {
      builder.add(here, there, length);
    }
    std::vector<Part> parts;
    if (auto merged = builder.take(); !merged.empty()) {
      parts.push_back(
          {local,
           std::make_shared<const RegionHandle>(remote),
           std::move(merged)});
    }
    auto made = std::make_shared<TestTransfer>(kind, peer, std::move(parts));
    made->onDone([made = made.get()] { ++made->ends_; });
    return made;
  }
  static auto readFrom(
      int peer,
      const RegionPtr& local,
      const RegionHandle& remote,
      const Pieces& pieces) {
    return make(Kind::kRead, peer, local, remote, pieces);
  }
  static auto writeTo(
      int peer,
      const RegionPtr& local,
      const RegionHandle& remote,
      const Pieces& pieces) {
    return make(Kind::kWrite, peer, local, remote, pieces);
  }
  int ends() const {
    return ends_;
  }
  int releases() const {
    return releases_;
  }

 private:
  void releaseMemory() override {
    ++releases_;
  }
  std::atomic<int> ends_ = 0, releases_ = 0;
};
using TestTransferPtr = std::shared_ptr<TestTransfer>;

} // namespace dlslime::testing
