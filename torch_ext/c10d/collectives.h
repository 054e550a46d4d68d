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

// Makes torch's own backend for collectives on "cpu" or "cuda" tensors; every
// rank of the group does so in the same collective. `store` is among these
// ranks alone, and ends once all have made theirs. What uses the group's store,
// whose keys outlive jobs, uses keys under `nonce`, the same on all ranks of
// this life.
using MakeCollectives = std::function<c10::intrusive_ptr<c10d::Backend>(
    const std::string& device,
    const std::string& nonce,
    const c10::intrusive_ptr<c10d::Store>& store,
    std::chrono::milliseconds limit)>;

// The backends that carry a group's collectives: Gloo for CPU tensors, NCCL
// for CUDA ones. Made at the first collective, never before: most groups that
// frameworks create never see one, and a Gloo group is a mesh of sockets. That
// waits for the other ranks, so it goes on behind the caller, and what is
// called meanwhile begins afterwards, in its order.
class Collectives : public std::enable_shared_from_this<Collectives> {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  // Begins one collective, or is told why none can be begun. Must not throw.
  // False: it was given up before its turn, so that the ranks would no more
  // agree about the next one.
  using Begin =
      std::function<bool(const BackendPtr&, const std::exception_ptr& problem)>;
  // Called at least every fifth of a second while the other ranks are awaited;
  // not while Gloo connects to them. Must not throw.
  using WhileWaiting = std::function<void()>;

  Collectives(std::shared_ptr<GroupHandle> handle, MakeCollectives make)
      : handle_(std::move(handle)), make_(std::move(make)) {}

  // Calls `begin` now where that is possible, else later on a thread of its
  // own. Any thread. `limit` is for all ranks to come. Throws DistBackendError
  // where they have not come: some may have made theirs.
  void begin(
      c10::DeviceType device,
      std::chrono::milliseconds limit,
      Begin begin,
      WhileWaiting whileWaiting);
  // The same at once, for a stream's collectives: waits for the other ranks,
  // heeding signals.
  BackendPtr await(c10::DeviceType device, std::chrono::milliseconds limit);
  // Why one that has waited so long for its turn has not begun.
  std::string describeLate(
      c10::DeviceType device,
      std::chrono::milliseconds limit);
  // What exists already.
  std::vector<BackendPtr> made();
  void setNames(const std::string& uid, const std::string& description);
  // New ones are refused from here on.
  void close();
  // They stay to the process's end, with their threads.
  void leak();

 private:
  struct Waiting {
    Begin begin;
    WhileWaiting whileWaiting;
  };
  // Of one type of device.
  struct Setup {
    BackendPtr backend;
    c10::intrusive_ptr<MessageStore> store; // while it is made
    std::string failure;
    // In turn, on a thread that lives until there are none.
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
  // Guarded by mutex_:
  std::map<c10::DeviceType, Setup> setups_;
  std::string uid_, description_;
  bool closed_ = false;
  bool leaks_ = false;
};

} // namespace dlslime
