#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/threads/mutex.h"
#include "torch_ext/store/store_messages.h"
#include "torch_ext/store/store_values.h"

namespace dlslime {

// Exchanges the values of a MessageStore with the peers, by messages of the
// group: rank 0 with every rank, the others with rank 0. Shared by the store
// and the pending receives. Any thread.
class StoreExchange : public std::enable_shared_from_this<StoreExchange> {
 public:
  // Most bytes of a message, and the size of each posted receive. Longer values
  // go in several messages.
  static constexpr size_t kMostBytes = 8 * 1024;
  // Longest key, in bytes.
  static constexpr size_t kMostKey = kMostBytes / 2;

  StoreExchange(
      std::shared_ptr<GroupHandle> handle,
      uint32_t tag,
      milliseconds limit,
      std::function<void()> whileWaiting);
  // Begins to listen to the peers.
  void start();
  // Drops the pending receives.
  void close();
  // Sets a key at all ranks.
  void set(const std::string& key, ByteSpan value);
  // Returns none if the key is not set, or its value not whole.
  std::optional<Bytes> find(const std::string& key);
  // Waits for all keys, at most until the store's own deadline. Throws
  // DistBackendError with problem().
  void awaitKeys(const std::vector<std::string>& keys, milliseconds most);
  // The following are MessageStore's.
  void finish();
  void fail(const std::string& why);
  std::string problem();
  std::string lateText(milliseconds limit);

 private:
  std::vector<int> peers() const;
  void sendToAll(const std::shared_ptr<Bytes>& bytes, int except = -1);

  // Receives until the last message of `peer`. Receives end outside of the
  // engine's lock, mostly on its thread.
  void listen(int peer);

  // Keeps a receive for close(), or drops the receive if close() was called.
  bool keep(int peer, const OperationPtr& operation);
  void drop(const OperationPtr& operation);

  // Returns whether more is to come from `peer`.
  bool take(int peer, const Operation& operation, const Bytes& bytes);
  void passOn(ByteSpan message, int from);
  bool add(const StoreMessage& message);
  void noteDone(int peer);
  void lost(int peer, const std::string& why);
  void note(const std::string& why, bool told = false);
  template <typename Ready>
  void await(TimePoint until, const Ready& ready);

  const std::shared_ptr<GroupHandle> handle_;
  const int rank_, size_;
  const uint32_t tag_;
  const milliseconds limit_;
  const std::function<void()> whileWaiting_;
  const TimePoint deadline_;
  Mutex mutex_;
  Condition changed_;
  // mutex_ guards all members below.
  StoreValues values_;
  std::map<int, OperationPtr> receives_; // pending, by rank
  std::set<int> heard_; // ranks from which a message has come
  std::set<int> done_;
  std::string problem_;
  bool told_ = false; // a failure has come, known to all ranks
  bool closed_ = false;
};

} // namespace dlslime
