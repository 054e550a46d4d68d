#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "torch_ext/c10d/message_store.h"

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
// frameworks create never see one, and a Gloo group is a mesh of sockets.
class Collectives {
 public:
  Collectives(std::shared_ptr<GroupHandle> handle, MakeCollectives make)
      : handle_(std::move(handle)), make_(std::move(make)) {}

  // Any thread; blocks for the other ranks when it is the first, for as long as
  // its collective may take. Throws DistBackendError then and ever after, if
  // they do not come: some may have made theirs.
  c10::intrusive_ptr<c10d::Backend> forDevice(
      c10::DeviceType device,
      std::chrono::milliseconds limit);
  // What exists already.
  std::vector<c10::intrusive_ptr<c10d::Backend>> made();
  void setNames(const std::string& uid, const std::string& description);
  // New ones are refused from here on.
  void close();
  // They stay to the process's end, with their threads.
  void leak();

 private:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  BackendPtr findLocked(c10::DeviceType device);
  BackendPtr findOrBegin(c10::DeviceType device, TimePoint deadline);
  BackendPtr make(
      c10::DeviceType device,
      std::chrono::milliseconds limit,
      std::string& failure);
  std::string describe(c10::DeviceType device, const std::string& why) const;

  const std::shared_ptr<GroupHandle> handle_;
  const MakeCollectives make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::optional<std::thread::id> maker_; // the thread that makes one
  std::map<c10::DeviceType, BackendPtr> backends_;
  std::map<c10::DeviceType, std::string> failures_;
  std::string uid_, description_;
  bool closed_ = false;
};

} // namespace dlslime
