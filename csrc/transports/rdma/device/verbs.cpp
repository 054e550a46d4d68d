#include "transports/rdma/device/verbs.h"

#include <dirent.h>
#include <dlfcn.h>

#include <atomic>

namespace dlslime::rdma {

namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

std::atomic<const Verbs*> replacement{nullptr};

// dlerror() names the library.
template <typename Function>
void bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw Error(
        ErrorCode::kUnavailable,
        std::string("libibverbs is older than rdma-core 30: ") + dlerror() +
            "; install a newer rdma-core");
  }
}

} // namespace

Verbs verbsOf(const char* name) {
  // Never closed, because the library has handlers for fork.
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(
        ErrorCode::kUnavailable,
        std::string("libibverbs can't be loaded: ") + dlerror() +
            "; install rdma-core (libibverbs1, ibverbs-providers)");
  }
  Verbs verbs{};
  bind(library, "ibv_get_device_list", verbs.getDeviceList);
  bind(library, "ibv_free_device_list", verbs.freeDeviceList);
  bind(library, "ibv_get_device_name", verbs.getDeviceName);
  bind(library, "ibv_open_device", verbs.openDevice);
  bind(library, "ibv_close_device", verbs.closeDevice);
  bind(library, "ibv_query_device", verbs.queryDevice);
  bind(library, "ibv_query_port", verbs.queryPort);
  bind(library, "_ibv_query_gid_ex", verbs.queryGidEx);
  bind(library, "ibv_alloc_pd", verbs.allocPd);
  bind(library, "ibv_dealloc_pd", verbs.deallocPd);
  bind(library, "ibv_reg_mr", verbs.regMr);
  verbs.regDmabufMr = reinterpret_cast<decltype(verbs.regDmabufMr)>(
      dlsym(library, "ibv_reg_dmabuf_mr"));
  bind(library, "ibv_dereg_mr", verbs.deregMr);
  bind(library, "ibv_create_comp_channel", verbs.createCompChannel);
  bind(library, "ibv_destroy_comp_channel", verbs.destroyCompChannel);
  bind(library, "ibv_create_cq", verbs.createCq);
  bind(library, "ibv_destroy_cq", verbs.destroyCq);
  bind(library, "ibv_get_cq_event", verbs.getCqEvent);
  bind(library, "ibv_ack_cq_events", verbs.ackCqEvents);
  bind(library, "ibv_create_qp", verbs.createQp);
  bind(library, "ibv_modify_qp", verbs.modifyQp);
  bind(library, "ibv_destroy_qp", verbs.destroyQp);
  bind(library, "ibv_fork_init", verbs.forkInit);
  verbs.forkStatus = reinterpret_cast<decltype(verbs.forkStatus)>(
      dlsym(library, "ibv_is_fork_initialized"));
  bind(library, "ibv_get_async_event", verbs.getAsyncEvent);
  bind(library, "ibv_ack_async_event", verbs.ackAsyncEvent);
  return verbs;
}

void prepareForForks(const Verbs& verbs) {
  // Since Linux 5.12 a fork copies registered memory for the child. Even then,
  // ibv_fork_init() would hide registered memory from the child, together with
  // all heap data in the same pages, so that the child would die in a plain
  // malloc.
  constexpr int kUnneeded = 2; // IBV_FORK_UNNEEDED; headers before 35 lack it
  if (verbs.forkStatus != nullptr && verbs.forkStatus() == kUnneeded) {
    return;
  }
  verbs.forkInit(); // an error has no remedy
}

namespace {

struct StatusText {
  ibv_wc_status status;
  const char* name;
  const char* hint;
};

constexpr StatusText kStatusTexts[] = {
    {IBV_WC_SUCCESS, "IBV_WC_SUCCESS", "no error"},
    {IBV_WC_LOC_LEN_ERR,
     "IBV_WC_LOC_LEN_ERR",
     "a message is longer than its buffer or than the device allows"},
    {IBV_WC_LOC_QP_OP_ERR,
     "IBV_WC_LOC_QP_OP_ERR",
     "the queue pair can't do this operation"},
    {IBV_WC_LOC_PROT_ERR,
     "IBV_WC_LOC_PROT_ERR",
     "local memory is not registered, or no longer: it was freed or "
     "re-mapped under the NIC"},
    {IBV_WC_WR_FLUSH_ERR,
     "IBV_WC_WR_FLUSH_ERR",
     "the queue pair had failed before; an earlier error is the cause"},
    {IBV_WC_MW_BIND_ERR, "IBV_WC_MW_BIND_ERR", "memory windows are not used"},
    {IBV_WC_BAD_RESP_ERR,
     "IBV_WC_BAD_RESP_ERR",
     "the peer's NIC sent a packet that does not fit"},
    {IBV_WC_LOC_ACCESS_ERR,
     "IBV_WC_LOC_ACCESS_ERR",
     "a write of the peer does not fit our memory region"},
    {IBV_WC_REM_INV_REQ_ERR,
     "IBV_WC_REM_INV_REQ_ERR",
     "the peer's NIC refuses the request as invalid"},
    {IBV_WC_REM_ACCESS_ERR,
     "IBV_WC_REM_ACCESS_ERR",
     "the peer's memory region is not registered, or does not permit the "
     "access"},
    {IBV_WC_REM_OP_ERR,
     "IBV_WC_REM_OP_ERR",
     "the peer's NIC could not carry out the operation"},
    {IBV_WC_RETRY_EXC_ERR,
     "IBV_WC_RETRY_EXC_ERR",
     "the peer's NIC does not answer: check the peer's process and host, the "
     "links, and whether the network drops packets of this size (MTU, PFC)"},
    {IBV_WC_RNR_RETRY_EXC_ERR,
     "IBV_WC_RNR_RETRY_EXC_ERR",
     "the peer had no receive posted in time"},
    {IBV_WC_LOC_RDD_VIOL_ERR, "IBV_WC_LOC_RDD_VIOL_ERR", "internal"},
    {IBV_WC_REM_INV_RD_REQ_ERR, "IBV_WC_REM_INV_RD_REQ_ERR", "internal"},
    {IBV_WC_REM_ABORT_ERR,
     "IBV_WC_REM_ABORT_ERR",
     "the peer's NIC aborted the operation"},
    {IBV_WC_FATAL_ERR,
     "IBV_WC_FATAL_ERR",
     "the NIC reports a fatal error; look at the kernel's log"},
    {IBV_WC_RESP_TIMEOUT_ERR,
     "IBV_WC_RESP_TIMEOUT_ERR",
     "the peer's NIC did not answer in time"},
    {IBV_WC_GENERAL_ERR,
     "IBV_WC_GENERAL_ERR",
     "an error of the NIC's transport; look at the kernel's log"},
};

} // namespace

void replaceVerbs(const Verbs* verbs) {
  replacement = verbs;
}

bool haveDevices() {
  if (replacement.load() != nullptr) {
    return true;
  }
  // std::filesystem would end the process when memory is short.
  auto* const folder = opendir("/sys/class/infiniband");
  if (folder == nullptr) {
    return false;
  }
  const dirent* entry = readdir(folder);
  while (entry != nullptr && entry->d_name[0] == '.') {
    entry = readdir(folder);
  }
  const bool any = entry != nullptr;
  closedir(folder);
  return any;
}

const Verbs& loadVerbs() {
  if (const auto* const fake = replacement.load()) {
    return *fake;
  }
  // A static whose initializer throws is tried again: the library may be
  // installed later.
  static const Verbs verbs = verbsOf(kLibrary);
  return verbs;
}

std::string describeCompletion(ibv_wc_status status, uint32_t vendorError) {
  for (const auto& text : kStatusTexts) {
    if (text.status == status) {
      std::string result = std::string(text.name) + " (" + text.hint;
      if (vendorError != 0) {
        result += "; vendor error " + std::to_string(vendorError);
      }
      return result + ")";
    }
  }
  return "completion status " + std::to_string(static_cast<int>(status));
}

} // namespace dlslime::rdma
