#pragma once

#include <infiniband/verbs.h>

#include <string>

#include "base/status.h"

namespace dlslime::rdma {

// The functions of libibverbs that we call by name, opened at run time so that
// one build runs with and without it. Posting and polling are not among them:
// verbs.h makes them calls through ibv_context::ops, which a fake fills too.
struct Verbs {
  ibv_device** (*getDeviceList)(int* count);
  void (*freeDeviceList)(ibv_device** list);
  const char* (*getDeviceName)(ibv_device* device);
  ibv_context* (*openDevice)(ibv_device* device);
  int (*closeDevice)(ibv_context* context);
  int (*queryDevice)(ibv_context* context, ibv_device_attr* attributes);
  // Fills the fields that every version of libibverbs has: zero it before.
  int (*queryPort)(ibv_context* context, uint8_t port, ibv_port_attr* out);
  int (*queryGidEx)(
      ibv_context* context,
      uint32_t port,
      uint32_t index,
      ibv_gid_entry* entry,
      uint32_t flags,
      size_t entrySize);
  ibv_pd* (*allocPd)(ibv_context* context);
  int (*deallocPd)(ibv_pd* domain);
  ibv_mr* (*regMr)(ibv_pd* domain, void* address, size_t length, int access);
  // Null where rdma-core is older than 34.
  ibv_mr* (*regDmabufMr)(
      ibv_pd* domain,
      uint64_t offset,
      size_t length,
      uint64_t address,
      int fd,
      int access);
  int (*deregMr)(ibv_mr* region);
  ibv_comp_channel* (*createCompChannel)(ibv_context* context);
  int (*destroyCompChannel)(ibv_comp_channel* channel);
  ibv_cq* (*createCq)(
      ibv_context* context,
      int entries,
      void* tag,
      ibv_comp_channel* channel,
      int vector);
  int (*destroyCq)(ibv_cq* queue);
  int (*getCqEvent)(ibv_comp_channel* channel, ibv_cq** queue, void** tag);
  void (*ackCqEvents)(ibv_cq* queue, unsigned int count);
  ibv_qp* (*createQp)(ibv_pd* domain, ibv_qp_init_attr* attributes);
  int (*modifyQp)(ibv_qp* pair, ibv_qp_attr* attributes, int mask);
  int (*destroyQp)(ibv_qp* pair);
  int (*forkInit)();
  int (*forkStatus)(); // null where rdma-core is older than 35
  int (*getAsyncEvent)(ibv_context* context, ibv_async_event* event);
  void (*ackAsyncEvent)(ibv_async_event* event);
};

// The calls of the libibverbs with this file name. Throws as loadVerbs().
Verbs verbsOf(const char* name);
// The process's libibverbs, loaded once; throws Error{kUnavailable} that says
// what is missing and what to install.
const Verbs& loadVerbs();
// Whether it is worth loading them: the kernel shows an RDMA device.
bool haveDevices();
// Before the first registration: sees to it that a NIC goes on writing to this
// process's memory when it forks.
void prepareForForks(const Verbs& verbs);
// Makes loadVerbs() return these, for tests; null: the library's again.
void replaceVerbs(const Verbs* verbs);

// "IBV_WC_RETRY_EXC_ERR (the peer's NIC does not answer ...)": what ended a
// work request, and what to look at.
std::string describeCompletion(ibv_wc_status status, uint32_t vendorError);

} // namespace dlslime::rdma
