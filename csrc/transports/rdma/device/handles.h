#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "interface/accelerator.h"
#include "transports/rdma/device/verbs.h"

namespace dlslime::rdma {

// Owners of verbs objects. Each keeps alive what it was made from, so they may
// be dropped in any order.

class Context {
 public:
  // Throws Error.
  Context(const Verbs& verbs, ibv_device* device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Verbs& verbs() const {
    return verbs_;
  }
  ibv_context* get() const {
    return context_;
  }
  const std::string& name() const { // "mlx5_0"
    return name_;
  }
  // Readable when nextEvent() has something.
  int eventFd() const {
    return context_->async_fd;
  }
  struct Event {
    ibv_event_type type;
    uint8_t port; // of events about a port
  };
  // What the device has to tell, about itself or its ports. Does not block.
  std::optional<Event> nextEvent();
  // It was taken out, or reset: nextEvent() has found that.
  bool gone() const {
    return gone_;
  }

 private:
  const Verbs& verbs_;
  const std::string name_;
  ibv_context* const context_;
  bool gone_ = false;
};
using ContextPtr = std::shared_ptr<Context>;

class ProtectionDomain {
 public:
  explicit ProtectionDomain(ContextPtr context);
  ~ProtectionDomain();
  ProtectionDomain(const ProtectionDomain&) = delete;
  ProtectionDomain& operator=(const ProtectionDomain&) = delete;

  const ContextPtr& context() const {
    return context_;
  }
  ibv_pd* get() const {
    return domain_;
  }

 private:
  const ContextPtr context_;
  ibv_pd* const domain_;
};
using ProtectionDomainPtr = std::shared_ptr<ProtectionDomain>;

class MemoryRegion {
 public:
  // Local and remote reads and writes, or only remote reads of what is
  // read-only. Throws Error whose text says what to do about a locked-memory
  // limit.
  MemoryRegion(ProtectionDomainPtr domain, const MemoryView& view);
  // For this end alone: no key lets a peer reach it.
  struct OwnUse {};
  MemoryRegion(ProtectionDomainPtr domain, const MemoryView& view, OwnUse use);
  // Memory of a GPU: by its dma-buf, or else by its address, which takes a
  // module of the kernel (nvidia-peermem).
  MemoryRegion(
      ProtectionDomainPtr domain,
      const MemoryView& view,
      const Accelerator::ForNics& gpu);
  ~MemoryRegion();
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  uint32_t localKey() const {
    return region_->lkey;
  }
  uint32_t remoteKey() const {
    return region_->rkey;
  }

 private:
  const ProtectionDomainPtr domain_;
  ibv_mr* const region_;
};
using MemoryRegionPtr = std::shared_ptr<const MemoryRegion>;

class CompletionChannel {
 public:
  explicit CompletionChannel(ContextPtr context); // its fd does not block
  ~CompletionChannel();
  CompletionChannel(const CompletionChannel&) = delete;
  CompletionChannel& operator=(const CompletionChannel&) = delete;

  const ContextPtr& context() const {
    return context_;
  }
  ibv_comp_channel* get() const {
    return channel_;
  }
  int fd() const {
    return channel_->fd;
  }
  // Takes and acknowledges every event that is there.
  void drain();

 private:
  const ContextPtr context_;
  ibv_comp_channel* const channel_;
};

class CompletionQueue {
 public:
  // With room for `entries` completions, events on `channel` (may be null).
  CompletionQueue(
      ContextPtr context,
      std::shared_ptr<CompletionChannel> channel,
      int entries);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  ibv_cq* get() const {
    return queue_;
  }
  // Takes up to `most` completions; throws Error if the queue is broken.
  int poll(ibv_wc* completions, int most);
  // The next completion raises an event; if that can't be, poll() throws when
  // it has found none: a sleeper would never wake.
  void arm();

 private:
  const ContextPtr context_;
  const std::shared_ptr<CompletionChannel> channel_;
  ibv_cq* const queue_;
  std::atomic<int> armError_{0}; // errno
};
using CompletionQueuePtr = std::shared_ptr<CompletionQueue>;

} // namespace dlslime::rdma
