#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "engine/endpoint.h"
#include "torch_ext/one_sided/pending.h"

namespace dlslime {

// Link to a peer, of a process group or an endpoint, for operations outside of
// torch's interface. Any thread.
class PeerLink {
 public:
  PeerLink(std::shared_ptr<GroupHandle> handle, int peer)
      : handle_(std::move(handle)), peer_(peer) {}
  // For endpoints, which have no handle before they are connected.
  PeerLink() = default;
  virtual ~PeerLink() = default;

  // Starts a read or write. If `note` is not null, the peer gets the note under
  // `noteTag` afterwards.
  Pending transfer(
      bool write,
      std::shared_ptr<const Transfer::Parts> parts,
      uint32_t noteTag,
      const std::shared_ptr<Bytes>& note) const;
  Pending send(const at::Tensor& tensor, uint32_t tag) const;
  Pending receive(const at::Tensor& tensor, uint32_t tag) const;
  // sendNote() and receiveNote() carry short bytes, separate from tensors and
  // their tags.
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

// Link of an endpoint, connected by exchanging addresses with the peer.
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
  // mutex_ guards both members below.
  std::shared_ptr<GroupHandle> handle_; // null until connected
  bool closed_ = false;
};

} // namespace dlslime
