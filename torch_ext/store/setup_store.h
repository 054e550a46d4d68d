#pragma once

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

namespace dlslime {

// A store for setting up torch's backends, which only set keys and wait for
// keys. Functions that need a server throw NotImplementedError.
class SetupStore : public c10d::Store {
 public:
  using Store::set;
  using Store::Store;
  using Store::wait;

  void wait(const std::vector<std::string>& keys) final {
    wait(keys, timeout_);
  }
  int64_t add(const std::string& key, int64_t /*value*/) final {
    refuse("add", key);
  }
  bool deleteKey(const std::string& key) final {
    refuse("deleteKey", key);
  }
  int64_t getNumKeys() final {
    refuse("getNumKeys", "");
  }
  // Returns the store itself. Threads may share a MessageStore, but not a
  // PairStore.
  c10::intrusive_ptr<Store> clone() final {
    return c10::intrusive_ptr<Store>::unsafe_reclaim_from_nonowning(this);
  }

 private:
  [[noreturn]] static void refuse(const char* what, const std::string& key) {
    C10_THROW_ERROR(
        NotImplementedError,
        std::string("dlslime: ") + what + "(" + key +
            "): this store is only for setting up Gloo, and has set(), get(), "
            "check() and wait(); use the process group's own store");
  }
};

} // namespace dlslime
