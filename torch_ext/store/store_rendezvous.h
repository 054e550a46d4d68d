#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "interface/rendezvous.h"

namespace dlslime {

// A group's c10d store, in the form of a Rendezvous. No call waits for a key,
// except with a Python store that lacks check(): a TCPStore's client is locked
// during a wait, and threads of the program may need the client. A call may
// still have to wait for a thread of the program that waits for a key.
class StoreRendezvous final : public Rendezvous {
 public:
  explicit StoreRendezvous(c10::intrusive_ptr<c10d::Store> store);
  ~StoreRendezvous() override;
  StoreRendezvous(const StoreRendezvous&) = delete;
  StoreRendezvous& operator=(const StoreRendezvous&) = delete;

  void set(const std::string& key, const Bytes& value) override;
  std::optional<Bytes> tryGet(const std::string& key) override;
  std::optional<std::vector<Bytes>> tryGetAll(
      const std::vector<std::string>& keys) override;
  uint64_t increment(const std::string& key) override;
  // Calls Store::clone(). Throws Error if a store written in Python lacks
  // clone().
  std::shared_ptr<Rendezvous> another() override;

 private:
  template <typename Call>
  auto guarded(const char* what, const Call& call) const;

  c10::intrusive_ptr<c10d::Store> store_;
  const bool ofPython_; // or may be: calls take the GIL
};

} // namespace dlslime
