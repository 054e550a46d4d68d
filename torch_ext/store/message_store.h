#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch_ext/store/setup_store.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

class StoreExchange;

// A store among the ranks of a group, by the group's own messages: needs no
// server, keeps nothing of an earlier incarnation, and knows which ranks have
// not come. Every rank keeps every value; rank 0 passes values on. All ranks
// make the store, for a single purpose told by the tag, and end it by finish().
// Any thread.
class MessageStore final : public SetupStore {
 public:
  using SetupStore::set;
  using SetupStore::wait;

  // `limit` is for all waiting, until the store ends. `whileWaiting` is called
  // at least every 200 ms while waiting, and must not throw.
  MessageStore(
      const std::shared_ptr<GroupHandle>& handle,
      uint32_t tag,
      std::chrono::milliseconds limit,
      std::function<void()> whileWaiting);
  ~MessageStore() override;

  // Returns once all ranks have called finish(), when no rank needs the store
  // any more. Throws as get() does.
  void finish();
  // Gives up: tells `why` to the other ranks, which then fail at once.
  void fail(const std::string& why);
  // Says why the store cannot go on: a rank has died or given up, the time is
  // over, ... Empty if the store is well.
  std::string problem() const;
  // Names the ranks from which nothing has come within `limit`, as far as this
  // rank knows.
  std::string describeLate(std::chrono::milliseconds limit) const;

  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  // Waits for the key. Throws DistBackendError with problem(), or the exception
  // of a Python signal handler.
  std::vector<uint8_t> get(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  // Waits for the keys within the store's own limit. Gloo passes the time for
  // connecting, which begins once all ranks have come.
  void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) override;

 private:
  const std::shared_ptr<StoreExchange> exchange_;
};

} // namespace dlslime
