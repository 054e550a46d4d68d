#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "interface/accelerator.h"
#include "interface/connection_abilities.h"
#include "transports/rdma/device/verbs.h"

namespace dlslime::rdma {

// Owners of verbs objects. Each keeps alive the objects it was made from, so
// the owners may be dropped in any order.

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
  // Returns a descriptor that is readable when nextEvent() has an event.
  int eventFd() const {
    return context_->async_fd;
  }
  struct Event {
    ibv_event_type type;
    uint8_t port; // for events about a port
  };
  // Returns the next event about the device or its ports, if any. Does not
  // block.
  std::optional<Event> nextEvent();
  // Returns whether nextEvent() has found the device removed or reset.
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

class MemoryRegion final : public Registration {
 public:
  // Allows local and remote reads and writes, or only remote reads if the
  // memory is read-only. Throws Error; the text tells how to raise a limit on
  // locked memory.
  MemoryRegion(ProtectionDomainPtr domain, const MemoryView& view);
  // Allows local access only: no key lets a peer reach the memory.
  struct OwnUse {};
  MemoryRegion(ProtectionDomainPtr domain, const MemoryView& view, OwnUse use);
  // Registers GPU memory by its dma-buf, or else by its address, which needs a
  // kernel module (nvidia-peermem).
  MemoryRegion(
      ProtectionDomainPtr domain,
      const MemoryView& view,
      const GpuNicMemory::ForNics& gpu);
  ~MemoryRegion() override;
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
  explicit CompletionChannel(ContextPtr context); // fd() does not block
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
  // Takes and acknowledges all pending events.
  void drain();

 private:
  const ContextPtr context_;
  ibv_comp_channel* const channel_;
};

class CompletionQueue {
 public:
  // Makes a queue with room for `entries` completions and with events on
  // `channel`, which may be null.
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
  // Takes up to `most` completions. Throws Error if the queue is broken.
  int poll(ibv_wc* completions, int most);
  // Makes the next completion raise an event. If arming fails, a poll() that
  // finds no completion throws: without an event a sleeper would never wake.
  void arm();

 private:
  const ContextPtr context_;
  const std::shared_ptr<CompletionChannel> channel_;
  ibv_cq* queue_ = nullptr;
  std::atomic<int> armError_{0}; // errno
};
using CompletionQueuePtr = std::shared_ptr<CompletionQueue>;

} // namespace dlslime::rdma
