#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torch_ext/store/message_store.h"

namespace dlslime {

// Time after a deadline for a better explanation: the store's own error, or the
// news of a rank's death.
constexpr milliseconds kLag{300};

// Makes torch's own backend for collectives of "cpu" or "cuda" tensors, on
// every rank in the same collective. `store` serves only the ranks of the
// group, and ends once all ranks have made the backend. Keys in the group's
// store, which outlive jobs, are prefixed with `nonce`, equal on all ranks of
// an incarnation.
using MakeCollectives = std::function<c10::intrusive_ptr<c10d::Backend>(
    const std::string& device,
    const std::string& nonce,
    const c10::intrusive_ptr<c10d::Store>& store,
    std::chrono::milliseconds limit)>;

// Backends that carry a group's collectives: Gloo for CPU tensors, NCCL for
// CUDA tensors. A backend is made at the first collective: most groups of
// frameworks never run a collective, and a Gloo group is a mesh of sockets.
// Making a backend waits for all ranks, so a background thread makes it, and
// collectives called meanwhile begin afterwards, in the order of the calls.
class Collectives : public std::enable_shared_from_this<Collectives> {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  // Begins a collective, or takes the `problem` that prevents a begin. Must not
  // throw. Returns false if the collective was given up before its turn, after
  // which the ranks would disagree about the next collective.
  using Begin =
      std::function<bool(const BackendPtr&, const std::exception_ptr& problem)>;
  // Called at least every 200 ms while waiting for the ranks of the group, but
  // not while Gloo connects. Must not throw.
  using WhileWaiting = std::function<void()>;

  Collectives(std::shared_ptr<GroupHandle> handle, MakeCollectives make)
      : handle_(std::move(handle)), make_(std::move(make)) {}

  // Calls `begin` at once if the backend is ready, else later on a separate
  // thread. `limit` is for all ranks to come. Throws DistBackendError after
  // close(), and after a failed set-up, because some ranks may have made the
  // backend. Any thread.
  void begin(
      c10::DeviceType device,
      std::chrono::milliseconds limit,
      Begin begin,
      WhileWaiting whileWaiting);
  // Returns the backend for collectives in a stream, after waiting for all
  // ranks. Runs handlers of signals meanwhile.
  BackendPtr await(c10::DeviceType device, std::chrono::milliseconds limit);
  // Says why a collective has waited for `limit` without beginning.
  std::string describeLate(
      c10::DeviceType device,
      std::chrono::milliseconds limit);
  // Returns the backends made so far.
  std::vector<BackendPtr> made();
  void setNames(const std::string& uid, const std::string& description);
  // Refuses collectives from now on.
  void close();
  // Keeps Gloo's backend, and all backends made later, with their threads until
  // the process ends.
  void leak();

 private:
  struct Waiting {
    Begin begin;
    WhileWaiting whileWaiting;
  };
  // State for a type of device.
  struct Setup {
    BackendPtr backend;
    c10::intrusive_ptr<MessageStore> store; // while the backend is made
    std::string failure;
    // Collectives waiting for their turn, begun in order by a thread that ends
    // when the queue is empty.
    std::deque<std::shared_ptr<Waiting>> waiting; // null: being begun
  };

  Setup& usableLocked(c10::DeviceType device);
  void run(c10::DeviceType device, std::chrono::milliseconds limit);
  void beginAll(c10::DeviceType device, std::exception_ptr problem);
  void tellWaiting(c10::DeviceType device);
  BackendPtr make(c10::DeviceType device, std::chrono::milliseconds limit);
  c10::intrusive_ptr<MessageStore> openStore(
      c10::DeviceType device,
      std::chrono::milliseconds limit);
  void adopt(c10::DeviceType device, const BackendPtr& backend);
  std::exception_ptr fail(c10::DeviceType device, const std::string& why);
  std::string describe(c10::DeviceType device, const std::string& why) const;

  const std::shared_ptr<GroupHandle> handle_;
  const MakeCollectives make_;
  std::mutex mutex_;
  // mutex_ guards all members below.
  std::map<c10::DeviceType, Setup> setups_;
  std::string uid_, description_;
  bool closed_ = false;
  bool leaks_ = false;
};

} // namespace dlslime
