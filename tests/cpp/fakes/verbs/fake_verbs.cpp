// Verbs of a FakeFabric that make objects, except queue pairs (fake_pairs.cpp);
// fake_queues.cpp posts and polls.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "fakes/gpu/fake_gpu.h"
#include "fakes/verbs/fake_verbs_objects.h"

namespace dlslime::testing {

// Calls of verbs.h and transports/rdma/device/verbs.h, as static members of a
// friend with access to the fabric's state.
struct FakeCalls {
  using Cq = FakeFabric::Cq;
  using Context = FakeFabric::Context;

  static std::unique_lock<std::mutex> lock() {
    return FakeQueues::lock();
  }
  template <typename T>
  static T* fresh(const char* kind, T* object) {
    const auto held = lock();
    ++FakeFabric::current->live_[kind];
    return object;
  }
  // Returns whether the call fails, with errno set.
  static bool refused(const char* call) {
    const auto held = lock();
    errno = FakeQueues::refused(call);
    return errno != 0;
  }
  static int gone(const char* kind) {
    const auto held = lock();
    --FakeFabric::current->live_[kind];
    return 0;
  }

  static ibv_device** listDevices(int* count) {
    auto** const list =
        new ibv_device*[FakeFabric::current->handles_.size() + 1]();
    for (size_t i = 0; i < FakeFabric::current->handles_.size(); ++i) {
      list[i] = FakeFabric::current->handles_[i].get();
    }
    *count = static_cast<int>(FakeFabric::current->handles_.size());
    return list;
  }
  static void freeList(ibv_device** list) {
    delete[] list;
  }
  static const char* name(ibv_device* device) {
    return device->name;
  }
  static ibv_context* open(ibv_device* device) {
    for (const auto& known : FakeFabric::current->devices_) {
      if (known.name == device->name && refused(known)) {
        return nullptr;
      }
      if (known.name == device->name) {
        auto* const context = new Context;
        context->device = &known;
        context->base.device = device;
        context->base.cmd_fd = -1;
        context->base.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
        context->base.ops.post_send = FakeQueues::postSend;
        context->base.ops.post_recv = FakeQueues::postReceive;
        context->base.ops.poll_cq = FakeQueues::poll;
        context->base.ops.req_notify_cq = FakeQueues::arm;
        const auto held = lock();
        FakeFabric::current->contexts_.push_back(context);
        ++FakeFabric::current->live_["context"];
        return &context->base;
      }
    }
    errno = ENODEV;
    return nullptr;
  }
  // Returns whether opening fails, with errno set.
  static bool refused(const FakeDevice& device) {
    const auto held = lock();
    errno = device.openError;
    return errno != 0;
  }
  static int close(ibv_context* context) {
    const auto held = lock();
    std::erase(FakeFabric::current->contexts_, &of(context));
    --FakeFabric::current->live_["context"];
    ::close(context->async_fd);
    delete &of(context);
    return 0;
  }
  static int getAsyncEvent(ibv_context* base, ibv_async_event* event) {
    const auto held = lock();
    if (FakeFabric::current->removed_.contains(base->device->name)) {
      errno = EIO; // and the descriptor stays readable
      return -1;
    }
    uint64_t one = 0;
    if (read(base->async_fd, &one, sizeof(one)) != sizeof(one)) {
      return -1;
    }
    auto& events = of(base).events;
    *event = events.front();
    events.pop_front();
    return 0;
  }
  static void acknowledgeAsync(ibv_async_event* /*event*/) {}
  static int queryDevice(ibv_context* context, ibv_device_attr* out) {
    const auto& device = *of(context).device;
    out->phys_port_cnt = static_cast<uint8_t>(device.ports.size());
    out->max_qp = 1000;
    out->max_qp_wr = device.maxRequests;
    out->max_sge = 4;
    out->max_cqe = device.maxCompletions;
    out->max_qp_rd_atom = 16;
    out->max_qp_init_rd_atom = 16;
    out->max_mr_size = ~0ULL;
    return 0;
  }
  static int
  queryPort(ibv_context* context, uint8_t number, ibv_port_attr* out) {
    const auto held = lock();
    if (FakeFabric::current->removed_.contains(context->device->name)) {
      return EIO;
    }
    const auto& ports = of(context).device->ports;
    if (number == 0 || number > ports.size()) {
      return EINVAL;
    }
    const auto& port = ports[number - 1U];
    out->state = port.state;
    out->active_mtu = port.mtu;
    out->lid = port.lid;
    out->link_layer =
        port.ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
    out->gid_tbl_len = static_cast<int>(port.gids.size()) + 2;
    out->max_msg_sz = 1U << 31;
    out->active_width = port.width;
    out->active_speed = port.speed;
    out->flags = port.flags;
    return 0;
  }
  static int queryGid(
      ibv_context* context,
      uint32_t port,
      uint32_t index,
      ibv_gid_entry* entry,
      uint32_t /*flags*/,
      size_t /*size*/) {
    const auto held = lock();
    const auto& gids = of(context).device->ports.at(port - 1).gids;
    if (index >= gids.size()) {
      return ENODATA;
    }
    entry->gid = gids[index].value;
    entry->gid_index = index;
    entry->port_num = port;
    entry->gid_type = gids[index].type;
    return 0;
  }
  static ibv_pd* allocateDomain(ibv_context* context) {
    if (refused("alloc_pd")) {
      return nullptr;
    }
    auto* const domain = new ibv_pd{};
    domain->context = context;
    return fresh("pd", domain);
  }
  static int freeDomain(ibv_pd* domain) {
    delete domain;
    return gone("pd");
  }
  // Returns null on failure, with errno set.
  static ibv_mr*
  made(ibv_pd* domain, uintptr_t address, size_t size, int access) {
    if (FakeFabric::current->failingRegistrations_ > 0) {
      --FakeFabric::current->failingRegistrations_;
      errno = FakeFabric::current->registrationError_;
      return nullptr;
    }
    auto* const region = new ibv_mr{};
    region->context = domain->context;
    region->pd = domain;
    region->addr = reinterpret_cast<void*>(address);
    region->length = size;
    region->lkey = region->rkey = FakeFabric::current->nextNumber_++;
    FakeFabric::current->regions_[region->lkey] = {
        address, size, domain, access, reinterpret_cast<std::byte*>(address)};
    ++FakeFabric::current->live_["mr"];
    return region;
  }
  // Returns false for memory that processors can't reach: as without
  // nvidia-peermem, NICs can't reach such memory either.
  static bool accessible(const void* address) {
    char byte = 0;
    iovec here{&byte, 1}, there{const_cast<void*>(address), 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 ||
        errno != EFAULT;
  }
  static ibv_mr*
  registerRegion(ibv_pd* domain, void* address, size_t size, int access) {
    auto told = [&] {
      const auto held = lock();
      return FakeFabric::current->registrationTold_;
    }();
    told(size);
    const auto held = lock();
    if (!accessible(address)) {
      errno = EFAULT;
      return nullptr;
    }
    return made(domain, reinterpret_cast<uintptr_t>(address), size, access);
  }
  static ibv_mr* registerDmaBuf(
      ibv_pd* domain,
      uint64_t offset,
      size_t size,
      uint64_t address,
      int fd,
      int access) {
    const auto held = lock();
    size_t length = offset + size;
    void* mapped = FakeGpu::mapRange(fd, length);
    if (mapped == nullptr) {
      mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (mapped == MAP_FAILED) {
      return nullptr;
    }
    auto* const region = made(domain, address, size, access);
    if (region == nullptr) {
      munmap(mapped, length);
      return nullptr;
    }
    FakeFabric::current->regions_[region->lkey].bytes =
        static_cast<std::byte*>(mapped) + offset;
    FakeFabric::current->mapped_[region->lkey] = {mapped, length};
    ++FakeFabric::current->live_["dma-buf"];
    return region;
  }
  static int deregister(ibv_mr* region) {
    const auto [told, size] = [&] {
      const auto held = lock();
      const auto& fabric = *FakeFabric::current;
      return std::pair(
          fabric.deregistrationTold_, fabric.regions_.at(region->lkey).size);
    }();
    told(size);
    const auto held = lock();
    FakeFabric::current->regions_.erase(region->lkey);
    if (const auto mapping =
            FakeFabric::current->mapped_.extract(region->lkey)) {
      munmap(mapping.mapped().first, mapping.mapped().second);
      --FakeFabric::current->live_["dma-buf"];
    }
    --FakeFabric::current->live_["mr"];
    delete region;
    return 0;
  }
  static ibv_comp_channel* makeChannel(ibv_context* context) {
    if (refused("create_comp_channel")) {
      return nullptr;
    }
    auto* const channel = new ibv_comp_channel{};
    channel->context = context;
    channel->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    return fresh("channel", channel);
  }
  static int destroyChannel(ibv_comp_channel* channel) {
    ::close(channel->fd);
    delete channel;
    return gone("channel");
  }
  static ibv_cq* makeCq(
      ibv_context* context,
      int entries,
      void* tag,
      ibv_comp_channel* channel,
      int /*vector*/) {
    if (entries > of(context).device->maxCompletions) {
      errno = EINVAL;
      return nullptr;
    }
    if (refused("create_cq")) {
      return nullptr;
    }
    auto* const cq = new Cq;
    cq->base.context = context;
    cq->base.cq_context = tag;
    cq->base.channel = channel;
    cq->base.cqe = entries;
    cq->capacity = static_cast<size_t>(entries);
    return &fresh("cq", cq)->base;
  }
  static int destroyCq(ibv_cq* cq) {
    delete &of(cq);
    return gone("cq");
  }
  static int getEvent(ibv_comp_channel* channel, ibv_cq** cq, void** tag) {
    uint64_t one = 0;
    if (read(channel->fd, &one, sizeof(one)) != sizeof(one)) {
      return -1;
    }
    *cq = nullptr; // not needed by any caller
    *tag = nullptr;
    return 0;
  }
  static void acknowledge(ibv_cq* /*cq*/, unsigned int /*count*/) {}

  static int forkInit() {
    return 0;
  }
};

const rdma::Verbs& FakeFabric::verbs() {
  static const rdma::Verbs verbs = [] {
    rdma::Verbs calls{};
    calls.getDeviceList = FakeCalls::listDevices;
    calls.freeDeviceList = FakeCalls::freeList;
    calls.getDeviceName = FakeCalls::name;
    calls.openDevice = FakeCalls::open;
    calls.closeDevice = FakeCalls::close;
    calls.queryDevice = FakeCalls::queryDevice;
    calls.queryPort = FakeCalls::queryPort;
    calls.queryGidEx = FakeCalls::queryGid;
    calls.allocPd = FakeCalls::allocateDomain;
    calls.deallocPd = FakeCalls::freeDomain;
    calls.regMr = FakeCalls::registerRegion;
    calls.regDmabufMr = FakeCalls::registerDmaBuf;
    calls.deregMr = FakeCalls::deregister;
    calls.createCompChannel = FakeCalls::makeChannel;
    calls.destroyCompChannel = FakeCalls::destroyChannel;
    calls.createCq = FakeCalls::makeCq;
    calls.destroyCq = FakeCalls::destroyCq;
    calls.getCqEvent = FakeCalls::getEvent;
    calls.ackCqEvents = FakeCalls::acknowledge;
    calls.createQp = FakePairs::make;
    calls.modifyQp = FakePairs::modify;
    calls.destroyQp = FakePairs::destroy;
    calls.forkInit = FakeCalls::forkInit;
    calls.getAsyncEvent = FakeCalls::getAsyncEvent;
    calls.ackAsyncEvent = FakeCalls::acknowledgeAsync;
    return calls;
  }();
  return verbs;
}

} // namespace dlslime::testing
