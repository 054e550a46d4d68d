#pragma once

#include <map>

#include "base/threads/mutex.h"
#include "interface/rendezvous.h"

namespace dlslime {

// Store in memory, for endpoints and hubs: the program carries address records
// from process to process by hand.
class MapRendezvous final : public Rendezvous {
 public:
  void set(const std::string& key, const Bytes& value) override {
    const MutexLock lock(mutex_);
    values_[key] = value;
  }
  std::optional<Bytes> tryGet(const std::string& key) override {
    const MutexLock lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt
                                  : std::optional<Bytes>(found->second);
  }
  bool blocks() const override {
    return false;
  }
  uint64_t increment(const std::string& key) override {
    const MutexLock lock(mutex_);
    return ++counters_[key];
  }

 private:
  Mutex mutex_;
  std::map<std::string, Bytes> values_ GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> counters_ GUARDED_BY(mutex_);
};

} // namespace dlslime
