#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/rendezvous.h"

namespace dlslime {

// A group's c10d store as the engine wants it. A TCPStore's client is locked
// while any thread waits in it, as torch and users do for seconds: so the
// wire-up thread, which must not be held up, looks keys up in a clone with a
// connection of its own, made when needed.
class StoreRendezvous final : public Rendezvous {
 public:
  explicit StoreRendezvous(c10::intrusive_ptr<c10d::Store> store)
      : store_(std::move(store)) {}

  void set(const std::string& key, const Bytes& value) override;
  std::optional<Bytes> tryGet(const std::string& key) override;
  void rest() override {
    clone_.reset();
  }
  uint64_t increment(const std::string& key) override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Store> clone_; // of the wire-up thread
};

} // namespace dlslime
