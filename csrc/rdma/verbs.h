#pragma once

#include <infiniband/verbs.h>

#include <string>

#include "core/status.h"

namespace dlslime::rdma {

// The functions of libibverbs that we call by name, opened at run time so that
// one build runs with and without it. Posting and polling are not among them:
// verbs.h makes them calls through ibv_context::ops, which a fake fills too.
struct Verbs {
  ibv_device** (*get_device_list)(int* count);
  void (*free_device_list)(ibv_device** list);
  const char* (*get_device_name)(ibv_device* device);
  ibv_context* (*open_device)(ibv_device* device);
  int (*close_device)(ibv_context* context);
  int (*get_async_event)(ibv_context* context, ibv_async_event* event);
  void (*ack_async_event)(ibv_async_event* event);
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes);
  // Fills the fields that every version of libibverbs has: zero it before.
  int (*query_port)(ibv_context* context, uint8_t port, ibv_port_attr* out);
  int (*query_gid_ex)(
      ibv_context* context,
      uint32_t port,
      uint32_t index,
      ibv_gid_entry* entry,
      uint32_t flags,
      size_t entrySize);
  ibv_pd* (*alloc_pd)(ibv_context* context);
  int (*dealloc_pd)(ibv_pd* domain);
  ibv_mr* (*reg_mr)(ibv_pd* domain, void* address, size_t length, int access);
  int (*dereg_mr)(ibv_mr* region);
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context);
  int (*destroy_comp_channel)(ibv_comp_channel* channel);
  ibv_cq* (*create_cq)(
      ibv_context* context,
      int entries,
      void* tag,
      ibv_comp_channel* channel,
      int vector);
  int (*destroy_cq)(ibv_cq* queue);
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** queue, void** tag);
  void (*ack_cq_events)(ibv_cq* queue, unsigned int count);
  ibv_qp* (*create_qp)(ibv_pd* domain, ibv_qp_init_attr* attributes);
  int (*modify_qp)(ibv_qp* pair, ibv_qp_attr* attributes, int mask);
  int (*destroy_qp)(ibv_qp* pair);
  int (*fork_init)();
};

// The process's libibverbs, loaded once; throws Error{kUnavailable} that says
// what is missing and what to install.
const Verbs& loadVerbs();

// "IBV_WC_RETRY_EXC_ERR (the peer's NIC does not answer ...)": what ended a
// work request, and what to look at.
std::string describeCompletion(ibv_wc_status status, uint32_t vendorError);

} // namespace dlslime::rdma
