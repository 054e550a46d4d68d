#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace fake_gpu {

// What NCCL is to a process group, without NCCL: collectives of CUDA tensors
// alone, here by way of the CPU and of another backend.
c10::intrusive_ptr<c10d::Backend> makeNccl(
    c10::intrusive_ptr<c10d::Backend> carrier);
// What was called of all of them since the last time, in order.
std::vector<std::string> takeNcclCalls();

} // namespace fake_gpu
