#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>

namespace dlslime {

// A message, as torch.profiler and its trace describe communication.
struct ProfiledMessage {
  const char* what; // "send" or "recv"
  int peer; // rank in the group; -1: any
  const at::Tensor& tensor;
  const std::string& group;
  const std::string& groupDescription;
  const std::vector<uint64_t>& globalRanks; // empty: 0, 1, ...
  int groupSize;
};

// Calls `begin` inside of an event of torch.profiler with the message's size,
// type, group and peer. Ranges of NVTX come of the same event
// (torch.autograd.profiler.emit_nvtx).
void profiled(
    const ProfiledMessage& message,
    const std::function<void()>& begin);

} // namespace dlslime
