#pragma once

#include <infiniband/verbs.h>

#include <string>

#include "base/status.h"

namespace dlslime::rdma {

// The functions of libibverbs called by name, opened at run time so that one
// build runs with and without the library. Posting and polling are missing:
// verbs.h calls them through ibv_context::ops, which a fake fills, too.
struct Verbs {
  ibv_device** (*getDeviceList)(int* count);
  void (*freeDeviceList)(ibv_device** list);
  const char* (*getDeviceName)(ibv_device* device);
  ibv_context* (*openDevice)(ibv_device* device);
  int (*closeDevice)(ibv_context* context);
  int (*queryDevice)(ibv_context* context, ibv_device_attr* attributes);
  // Fills only the fields known to every version of libibverbs, so `out` must
  // be zeroed before.
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
  // Null if rdma-core is older than 34.
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
  int (*forkStatus)(); // null if rdma-core is older than 35
  int (*getAsyncEvent)(ibv_context* context, ibv_async_event* event);
  void (*ackAsyncEvent)(ibv_async_event* event);
};

// Returns the functions of the libibverbs with file name `name`. Throws as
// loadVerbs() does.
Verbs verbsOf(const char* name);
// Returns the process's libibverbs, loaded once. Throws Error{kUnavailable};
// the text tells what is missing and what to install.
const Verbs& loadVerbs();
// Returns whether the kernel shows an RDMA device, so that loading the library
// is worthwhile.
bool haveDevices();
// Makes sure that NICs go on writing to the process's memory after a fork.
// Called before the first registration.
void prepareForForks(const Verbs& verbs);
// Makes loadVerbs() return `verbs`, for tests. Null restores the library's
// functions.
void replaceVerbs(const Verbs* verbs);

// Describes the end of a work request, with a hint for the user:
// "IBV_WC_RETRY_EXC_ERR (the peer's NIC does not answer
// ...)".
std::string describeCompletion(ibv_wc_status status, uint32_t vendorError);

} // namespace dlslime::rdma
