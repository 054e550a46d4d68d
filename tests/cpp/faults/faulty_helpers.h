#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "engine/bootstrap/map_rendezvous.h"
#include "fakes/memory_carriers.h"
#include "faults/fault_plan.h"

namespace dlslime::testing {

// A store whose calls fail by the plan of faults. May block, so the engine
// reads the store on a thread of the engine's own.
class FaultyStore final : public Rendezvous {
 public:
  void set(const std::string& key, const Bytes& value) override {
    mayFail();
    content_.set(key, value);
  }
  std::optional<Bytes> tryGet(const std::string& key) override {
    mayFail();
    const RoleScope own(ThreadRole::kTest);
    return content_.tryGet(key);
  }
  uint64_t increment(const std::string& key) override {
    mayFail();
    return content_.increment(key);
  }

 private:
  static void mayFail() {
    if (const int code = faultOf(Call::kStore)) {
      throw Error(static_cast<ErrorCode>(code), "the store fails on purpose");
    }
  }
  MapRendezvous content_;
};

// Carriers whose calls fail by the plan of faults.
class FaultyCarriers final : public gloo::CarrierSource {
 public:
  std::unique_ptr<gloo::Carrier>
  make(const std::string& nonce, int end, const OpenSideSocket& side) override {
    mayFail();
    const RoleScope own(ThreadRole::kTest);
    return std::make_unique<End>(carriers_->make(nonce, end, side));
  }
  // Ends all waits for a second end.
  void release() {
    carriers_->release();
  }

 private:
  class End final : public gloo::Carrier {
   public:
    explicit End(std::unique_ptr<gloo::Carrier> carrier)
        : carrier_(std::move(carrier)) {}
    void send(const std::byte* data, size_t size) override {
      mayFail();
      const RoleScope own(ThreadRole::kTest);
      carrier_->send(data, size);
    }
    void receive(std::byte* data, size_t size) override {
      mayFail();
      const RoleScope own(ThreadRole::kTest);
      carrier_->receive(data, size);
    }
    void abort() noexcept override {
      carrier_->abort();
    }

   private:
    const std::unique_ptr<gloo::Carrier> carrier_;
  };
  static void mayFail() {
    if (const int code = faultOf(Call::kCarrier)) {
      throw Error(static_cast<ErrorCode>(code), "the carrier fails on purpose");
    }
  }
  const std::shared_ptr<MemoryCarriers> carriers_ =
      std::make_shared<MemoryCarriers>();
};

} // namespace dlslime::testing
