#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch_ext/store/setup_store.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

// A store among the ranks of one group, by the group's own messages: it needs
// no server, keeps nothing of an earlier life of the job, and knows which ranks
// have not come. Every rank keeps every value; rank 0 passes on those of the
// others. Made by all ranks, for one purpose (the tag), which ends by finish().
// Any thread.
class MessageStore final : public SetupStore {
 public:
  using SetupStore::set;
  using SetupStore::wait;

  // `limit` is for all that is waited for until it ends. `whileWaiting` is
  // called at least every fifth of a second, and must not throw.
  MessageStore(
      const std::shared_ptr<GroupHandle>& handle,
      uint32_t tag,
      std::chrono::milliseconds limit,
      std::function<void()> whileWaiting);
  ~MessageStore() override;

  // Returns once all ranks have called it: nothing is asked of the store any
  // more. Throws as get().
  void finish();
  // This rank gives up: the others are told why, and fail at once.
  void fail(const std::string& why);
  // Why it can't go on: a rank has died or given up, the time is over, ...
  std::string problem() const;
  // Which ranks have not come within `limit`, as far as this one knows.
  std::string describeLate(std::chrono::milliseconds limit) const;

  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  // Waits for the key. Throws DistBackendError: see problem(); or what a Python
  // handler of a signal raises.
  std::vector<uint8_t> get(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) override;

 private:
  class Exchange;
  const std::shared_ptr<Exchange> exchange_;
};

} // namespace dlslime
