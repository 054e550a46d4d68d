#include "transports/rdma/device/handles.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>

#include "base/fork_guard.h"
#include "base/log.h"

namespace dlslime::rdma {

namespace {

// The text is made here, and not by the caller: without memory for the text, an
// object made before would be lost.
template <typename T>
T* made(T* object, const char* what, const std::string& name) {
  if (object == nullptr) {
    const int error = errno;
    throwErrno(what + name, error);
  }
  return object;
}

// Logs a failure instead of throwing, because the callers are destructors. A
// resource that a NIC does not give back is a leak that only the kernel can
// end.
void expectFreed(int error, const char* what) {
  if (error != 0) {
    logWarning(
        std::string("a ") + what + " could not be freed: " + errnoText(error));
  }
}

// Returns "; the limit on locked memory is 64 KiB ..." if the limit may be the
// cause.
std::string lockedMemoryHint(int error) {
  rlimit limit{};
  if ((error != ENOMEM && error != EAGAIN && error != EPERM) ||
      getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return "; the limit on locked memory is " +
      std::to_string(limit.rlim_cur / 1024) +
      " KiB: raise it (ulimit -l unlimited, docker run --ulimit memlock=-1, "
      "LimitMEMLOCK=infinity for services, in Kubernetes for containerd)";
}

constexpr int kAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

constexpr int kReading = IBV_ACCESS_REMOTE_READ;

std::string cannotRegister(const Context& context, size_t size, int error) {
  return "cannot register " + std::to_string(size) + " bytes with " +
      context.name() + ": " + errnoText(error);
}

int accessOf(const MemoryView& view) {
  return view.readOnly ? kReading : kAccess;
}

ibv_mr*
registerMemory(ProtectionDomain& domain, const MemoryView& view, int access) {
  const auto& context = *domain.context();
  auto* const region =
      context.verbs().regMr(domain.get(), view.data, view.size, access);
  if (region == nullptr) {
    const int error = errno;
    throw Error(
        ErrorCode::kTransportFailed,
        cannotRegister(context, view.size, error) + lockedMemoryHint(error));
  }
  return region;
}

ibv_mr* registerGpu(
    ProtectionDomain& domain,
    const MemoryView& view,
    const GpuNicMemory::ForNics& gpu) {
  const auto& context = *domain.context();
  const auto& verbs = context.verbs();
  const int access = accessOf(view);
  const bool byDmaBuf = gpu.dmaBuf && verbs.regDmabufMr != nullptr;
  ibv_mr* region = nullptr;
  if (byDmaBuf) {
    const auto address = reinterpret_cast<uint64_t>(view.data);
    region = verbs.regDmabufMr(
        domain.get(), gpu.offset, view.size, address, gpu.dmaBuf.get(), access);
  }
  if (region == nullptr) {
    region = verbs.regMr(domain.get(), view.data, view.size, access);
  }
  if (region == nullptr) {
    throw Error(
        ErrorCode::kTransportFailed,
        cannotRegister(context, view.size, errno) +
            (byDmaBuf ? "; the dma-buf of this GPU memory was refused as well"
                      : "; there is no dma-buf of this GPU memory") +
            ": GPUDirect RDMA takes NVIDIA's open kernel modules and Linux "
            "5.12, or else "
            "the module nvidia-peermem");
  }
  return region;
}

// Throws Error.
void makeNonBlocking(int fd, const char* what) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    throwErrno(std::string("cannot make non-blocking ") + what, errno);
  }
}

} // namespace

Context::Context(const Verbs& verbs, ibv_device* device)
    : verbs_(verbs),
      name_(verbs.getDeviceName(device)),
      context_(
          made(verbs.openDevice(device), "cannot open RDMA device ", name_)) {
  try {
    makeNonBlocking(context_->async_fd, "the events of an RDMA device");
    registerForkFd(context_->cmd_fd);
    registerForkFd(context_->async_fd);
  } catch (const std::exception&) {
    unregisterForkFd(context_->cmd_fd);
    unregisterForkFd(context_->async_fd);
    verbs_.closeDevice(context_);
    throw;
  }
}

std::optional<Context::Event> Context::nextEvent() {
  ibv_async_event event{};
  if (verbs_.getAsyncEvent(context_, &event) != 0) {
    gone_ |= errno != EAGAIN && errno != EINTR;
    return std::nullopt;
  }
  const Event copy{
      event.event_type, static_cast<uint8_t>(event.element.port_num)};
  verbs_.ackAsyncEvent(&event);
  return copy;
}

Context::~Context() {
  unregisterForkFd(context_->cmd_fd);
  unregisterForkFd(context_->async_fd);
  expectFreed(verbs_.closeDevice(context_), "device context");
}

ProtectionDomain::ProtectionDomain(ContextPtr context)
    : context_(std::move(context)),
      domain_(made(
          context_->verbs().allocPd(context_->get()),
          "cannot make a protection domain on ",
          context_->name())) {}

ProtectionDomain::~ProtectionDomain() {
  expectFreed(context_->verbs().deallocPd(domain_), "protection domain");
}

MemoryRegion::MemoryRegion(ProtectionDomainPtr domain, const MemoryView& view)
    : domain_(std::move(domain)),
      region_(registerMemory(*domain_, view, accessOf(view))) {}

MemoryRegion::MemoryRegion(
    ProtectionDomainPtr domain,
    const MemoryView& view,
    OwnUse /*use*/)
    : domain_(std::move(domain)),
      region_(registerMemory(*domain_, view, IBV_ACCESS_LOCAL_WRITE)) {}

MemoryRegion::MemoryRegion(
    ProtectionDomainPtr domain,
    const MemoryView& view,
    const GpuNicMemory::ForNics& gpu)
    : domain_(std::move(domain)), region_(registerGpu(*domain_, view, gpu)) {}

MemoryRegion::~MemoryRegion() {
  expectFreed(domain_->context()->verbs().deregMr(region_), "memory region");
}

CompletionChannel::CompletionChannel(ContextPtr context)
    : context_(std::move(context)),
      channel_(made(
          context_->verbs().createCompChannel(context_->get()),
          "cannot make a completion channel on ",
          context_->name())) {
  try {
    makeNonBlocking(channel_->fd, "a completion channel");
    registerForkFd(channel_->fd);
  } catch (const std::exception&) {
    context_->verbs().destroyCompChannel(channel_);
    throw;
  }
}

CompletionChannel::~CompletionChannel() {
  unregisterForkFd(channel_->fd);
  expectFreed(
      context_->verbs().destroyCompChannel(channel_), "completion channel");
}

void CompletionChannel::drain() {
  ibv_cq* queue = nullptr;
  void* tag = nullptr;
  while (context_->verbs().getCqEvent(channel_, &queue, &tag) == 0) {
    context_->verbs().ackCqEvents(queue, 1);
  }
}

CompletionQueue::CompletionQueue(
    ContextPtr context,
    std::shared_ptr<CompletionChannel> channel,
    int entries)
    : context_(std::move(context)), channel_(std::move(channel)) {
  const auto count = std::to_string(entries) + " entries on ";
  const auto what = "cannot make a completion queue of " + count;
  auto* const events = channel_ ? channel_->get() : nullptr;
  queue_ = made(
      context_->verbs().createCq(context_->get(), entries, nullptr, events, 0),
      what.c_str(),
      context_->name());
}

CompletionQueue::~CompletionQueue() {
  expectFreed(context_->verbs().destroyCq(queue_), "completion queue");
}

int CompletionQueue::poll(ibv_wc* completions, int most) {
  const int count = ibv_poll_cq(queue_, most, completions);
  if (count < 0) {
    throw Error(
        ErrorCode::kTransportFailed,
        "polling a completion queue of " + context_->name() +
            " failed: " + std::to_string(count));
  }
  const int error = armError_.load(std::memory_order_relaxed);
  if (count == 0 && error != 0) { // queued completions come first
    throwErrno(
        "cannot ask for completion events of " + context_->name(), error);
  }
  return count;
}

void CompletionQueue::arm() {
  armError_.store(ibv_req_notify_cq(queue_, 0), std::memory_order_relaxed);
}

} // namespace dlslime::rdma
