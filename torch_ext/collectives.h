#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <map>
#include <mutex>

namespace dlslime {

// Makes torch's own backend for collectives on "cpu" or "cuda" tensors; every
// rank of the group does so in the same collective. Keys in the store outlive
// jobs, so it uses keys under `nonce`, which all ranks of this life share.
using MakeCollectives = std::function<c10::intrusive_ptr<c10d::Backend>(
    const std::string& device,
    const std::string& nonce)>;
// Gives every rank the same nonce; blocks for rank 0.
using AgreeNonce = std::function<std::string(c10::DeviceType device)>;

// The backends that carry a group's collectives: Gloo for CPU tensors, NCCL
// for CUDA ones. Made at the first collective, never before: most groups that
// frameworks create never see one, and a Gloo group is a mesh of sockets.
class Collectives {
 public:
  Collectives(MakeCollectives make, AgreeNonce agree)
      : make_(std::move(make)), agree_(std::move(agree)) {}

  // Any thread; blocks for the other ranks when it is the first.
  c10::intrusive_ptr<c10d::Backend> forDevice(c10::DeviceType device);
  // What exists already.
  std::vector<c10::intrusive_ptr<c10d::Backend>> made();
  void setNames(const std::string& uid, const std::string& description);
  // New ones are refused from here on.
  void close();

 private:
  const MakeCollectives make_;
  const AgreeNonce agree_;
  std::mutex makeMutex_; // held while one is made
  std::mutex mutex_;
  // Guarded by mutex_:
  std::map<c10::DeviceType, c10::intrusive_ptr<c10d::Backend>> backends_;
  std::string uid_, description_;
  bool closed_ = false;
};

} // namespace dlslime
