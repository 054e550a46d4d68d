#pragma once

#include <map>
#include <string>
#include <vector>

#include "interface/side_socket.h"
#include "torch_ext/store/setup_store.h"

namespace dlslime {

// A store between two processes, by a socket between them: for setting up a
// group of two without the store of a larger one. One thread at a time.
class PairStore final : public SetupStore {
 public:
  using SetupStore::set;
  using SetupStore::wait;

  // `limit` is for all that is waited for.
  PairStore(SideSocket socket, std::chrono::milliseconds limit);

  // Returns once the other end has done the same, so that it has read all that
  // was set here. Throws as get().
  void finish();

  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  // Waits for the key. Throws DistStoreError: the other end has gone, the time
  // is over, ...
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
  size_t keptBytes_ = 0; // of all that has come
};

} // namespace dlslime
