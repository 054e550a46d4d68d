#pragma once

#include <map>
#include <string>
#include <vector>

#include "interface/side_socket.h"
#include "torch_ext/store/setup_store.h"

namespace dlslime {

// A store between two processes, over a side socket, for setting up a group of
// two without the store of a larger group. Used by a single thread at a time.
class PairStore final : public SetupStore {
 public:
  using SetupStore::set;
  using SetupStore::wait;

  // `limit` is for all waiting together.
  PairStore(SideSocket socket, std::chrono::milliseconds limit);

  // Returns once both ends have called finish(), and so have read all values
  // set. Throws as get() does.
  void finish();

  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  // Waits for the key. Throws DistStoreError if the other end has gone, or the
  // time is over.
  std::vector<uint8_t> get(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) override;

 private:
  void awaitSocket(short events, TimePoint deadline);
  bool receive(); // false: the other end has ended
  void takeFrames();

  const UniqueFd socket_;
  const TimePoint deadline_;
  Bytes received_;
  std::map<std::string, std::vector<uint8_t>> values_;
  size_t keptBytes_ = 0; // of all entries received
};

} // namespace dlslime
