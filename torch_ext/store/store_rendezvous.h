#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "interface/rendezvous.h"

namespace dlslime {

// A group's c10d store as the engine wants it. Nothing here waits for a key: a
// TCPStore's client is locked meanwhile, and other threads may need it. A call
// may all the same wait for another thread that does so.
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
  // By Store::clone(), which a store that is written in Python may lack.
  std::shared_ptr<Rendezvous> another() override;

 private:
  template <typename Call>
  auto guarded(const char* what, const Call& call) const;

  c10::intrusive_ptr<c10d::Store> store_;
  const bool ofPython_; // or may be: its calls take the GIL
};

} // namespace dlslime
