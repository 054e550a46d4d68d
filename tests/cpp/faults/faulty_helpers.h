#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "engine/bootstrap/map_rendezvous.h"
#include "fakes/memory_carriers.h"
#include "faults/fault_plan.h"

namespace dlslime::testing {

// A store whose calls fail as the plan of faults says. It may block, so the
// engine reads it on threads of its own.
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

// Carriers that fail in the same way.
class FaultyCarriers final : public gloo::CarrierSource {
 public:
  std::unique_ptr<gloo::Carrier>
  make(const std::string& nonce, int end, const OpenSideSocket& side) override {
    mayFail();
    const RoleScope own(ThreadRole::kTest);
    return std::make_unique<End>(carriers_->make(nonce, end, side));
  }
  // Nobody waits for another end any more.
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
