// The verbs of a FakeFabric that make objects; fake_queues.cpp posts and polls.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "fakes/fake_gpu.h"
#include "fakes/fake_verbs_objects.h"

namespace dlslime::testing {

// The calls that verbs.h and rdma/verbs.h make. Static members of a friend, so
// that they reach the fabric's state.
struct FakeCalls {
  using Qp = FakeFabric::Qp;
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
      if (known.name == device->name && known.opens) {
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
    errno = EACCES;
    return nullptr;
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
    out->max_qp_wr = device.maxSendRequests;
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
    out->active_width = 2; // 4 lanes
    out->active_speed = 64; // HDR
    return 0;
  }
  static int queryGid(
      ibv_context* context,
      uint32_t port,
      uint32_t index,
      ibv_gid_entry* entry,
      uint32_t /*flags*/,
      size_t /*size*/) {
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
    auto* const domain = new ibv_pd{};
    domain->context = context;
    return fresh("pd", domain);
  }
  static int freeDomain(ibv_pd* domain) {
    delete domain;
    return gone("pd");
  }
  // Null: it can't be, and errno says why.
  static ibv_mr* made(ibv_pd* domain, uintptr_t address, size_t size) {
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
        address, size, domain, reinterpret_cast<std::byte*>(address)};
    ++FakeFabric::current->live_["mr"];
    return region;
  }
  // Pages that processors can't get at a NIC can't either, as without
  // nvidia-peermem.
  static bool accessible(const void* address) {
    char byte = 0;
    iovec here{&byte, 1}, there{const_cast<void*>(address), 1};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 ||
        errno != EFAULT;
  }
  static ibv_mr*
  registerRegion(ibv_pd* domain, void* address, size_t size, int /*access*/) {
    const auto held = lock();
    if (!accessible(address)) {
      errno = EFAULT;
      return nullptr;
    }
    return made(domain, reinterpret_cast<uintptr_t>(address), size);
  }
  static ibv_mr* registerDmaBuf(
      ibv_pd* domain,
      uint64_t offset,
      size_t size,
      uint64_t address,
      int fd,
      int /*access*/) {
    const auto held = lock();
    size_t length = offset + size;
    void* mapped = FakeGpu::mapRange(fd, length);
    if (mapped == nullptr) {
      mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (mapped == MAP_FAILED) {
      return nullptr;
    }
    auto* const region = made(domain, address, size);
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
    auto* const cq = new Cq;
    cq->base.context = context;
    cq->base.cq_context = tag;
    cq->base.channel = channel;
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
    *cq = nullptr; // nobody here asks whose it was
    *tag = nullptr;
    return 0;
  }
  static void acknowledge(ibv_cq* /*cq*/, unsigned int /*count*/) {}

  static int refusal(ibv_context* context, ibv_qp_state state) {
    const auto& refused = FakeFabric::current->refusedPairs_;
    const auto found = refused.find({context->device->name, state});
    return found == refused.end() ? 0 : found->second;
  }
  static ibv_qp* makeQp(ibv_pd* domain, ibv_qp_init_attr* wanted) {
    const auto& device = *of(domain->context).device;
    const auto& cap = wanted->cap;
    if (cap.max_send_wr > static_cast<uint32_t>(device.maxSendRequests) ||
        cap.max_inline_data > device.maxInline ||
        wanted->qp_type != IBV_QPT_RC) {
      errno = EINVAL;
      return nullptr;
    }
    const auto held = lock();
    errno = refusal(domain->context, IBV_QPS_RESET);
    if (errno != 0) {
      return nullptr;
    }
    auto made = std::make_unique<Qp>();
    made->base.context = domain->context;
    made->base.pd = domain;
    made->base.qp_num = FakeFabric::current->nextNumber_++;
    made->base.state = IBV_QPS_RESET;
    made->base.send_cq = wanted->send_cq;
    made->base.recv_cq = wanted->recv_cq;
    made->limits = cap;
    made->sendCq = &of(wanted->send_cq);
    made->receiveCq = &of(wanted->recv_cq);
    auto* const base = &made->base;
    FakeFabric::current->qps_[base->qp_num] = std::move(made);
    ++FakeFabric::current->live_["qp"];
    return base;
  }
  // What the kernel demands of each step.
  static int required(ibv_qp_state from, ibv_qp_state to) {
    if (from == IBV_QPS_RESET && to == IBV_QPS_INIT) {
      return IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    }
    if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
      return IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
    if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) {
      return IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    return to == IBV_QPS_ERR || to == IBV_QPS_RESET ? 0 : -1;
  }
  static int modify(ibv_qp* base, ibv_qp_attr* attributes, int mask) {
    const auto held = lock();
    auto& qp = of(base);
    const int needed = required(base->state, attributes->qp_state);
    if ((mask & IBV_QP_STATE) == 0 || needed < 0 || (mask & needed) != needed) {
      return EINVAL;
    }
    if (const int error = refusal(base->context, attributes->qp_state)) {
      return error;
    }
    if (attributes->qp_state == IBV_QPS_RTR) {
      qp.attributes.dest_qp_num = attributes->dest_qp_num;
    }
    if (attributes->qp_state == IBV_QPS_RTS) {
      qp.attributes.rnr_retry = attributes->rnr_retry;
    }
    base->state = attributes->qp_state;
    if (base->state == IBV_QPS_ERR) {
      FakeFabric::current->flush(qp);
    }
    return 0;
  }
  static int destroyQp(ibv_qp* qp) {
    const auto held = lock();
    // Completions that wait may still name it.
    for (auto* const cq : {of(qp).sendCq, of(qp).receiveCq}) {
      std::erase_if(
          cq->entries, [&](const auto& e) { return e.retiring == &of(qp); });
    }
    FakeFabric::current->qps_.erase(qp->qp_num);
    --FakeFabric::current->live_["qp"];
    return 0;
  }
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
    calls.createQp = FakeCalls::makeQp;
    calls.modifyQp = FakeCalls::modify;
    calls.destroyQp = FakeCalls::destroyQp;
    calls.forkInit = FakeCalls::forkInit;
    calls.getAsyncEvent = FakeCalls::getAsyncEvent;
    calls.ackAsyncEvent = FakeCalls::acknowledgeAsync;
    return calls;
  }();
  return verbs;
}

} // namespace dlslime::testing
