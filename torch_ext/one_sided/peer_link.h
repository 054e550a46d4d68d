#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "engine/endpoint.h"
#include "torch_ext/one_sided/pending.h"

namespace dlslime {

// One peer, by a process group or by an endpoint, for what torch's interface
// does not have. Any thread.
class PeerLink {
 public:
  PeerLink(std::shared_ptr<GroupHandle> handle, int peer)
      : handle_(std::move(handle)), peer_(peer) {}
  // For endpoints, before they are connected.
  PeerLink() = default;
  virtual ~PeerLink() = default;

  // Starts a read or write; `note` follows it under a note tag, if there is
  // one.
  Pending transfer(
      bool write,
      std::shared_ptr<const Transfer::Parts> parts,
      uint32_t noteTag,
      const std::shared_ptr<Bytes>& note) const;
  Pending send(const at::Tensor& tensor, uint32_t tag) const;
  Pending receive(const at::Tensor& tensor, uint32_t tag) const;
  // Short bytes, apart from tensors and their tags.
  Pending sendNote(uint32_t noteTag, std::shared_ptr<Bytes> bytes) const;
  Pending receiveNote(uint32_t noteTag, size_t capacity) const;
  PeerReport explain() const;

 protected:
  virtual std::shared_ptr<GroupHandle> handle() const {
    return handle_;
  }
  virtual int peer() const {
    return peer_;
  }

 private:
  std::shared_ptr<GroupHandle> usable() const;
  static Pending post(
      const std::shared_ptr<GroupHandle>& shared,
      const OperationPtr& operation,
      std::shared_ptr<Bytes> bytes);

  const std::shared_ptr<GroupHandle> handle_;
  const int peer_ = 0;
};

// The same with a peer that has exchanged addresses with us.
class EndpointLink final : public PeerLink {
 public:
  explicit EndpointLink(const Endpoint::Options& options);
  ~EndpointLink() override;
  const Bytes& address() const {
    return endpoint_->address();
  }
  void connect(ByteSpan peer);
  void close();

 protected:
  std::shared_ptr<GroupHandle> handle() const override;
  int peer() const override {
    return endpoint_->peer();
  }

 private:
  std::shared_ptr<Endpoint> endpoint_;
  const milliseconds timeout_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::shared_ptr<GroupHandle> handle_; // once connected
  bool closed_ = false;
};

} // namespace dlslime
