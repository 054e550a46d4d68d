#include "torch_ext/c10d/profiled.h"

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <atomic>

namespace dlslime {

void profiled(
    const ProfiledMessage& message,
    const std::function<void()>& begin) {
  static std::atomic<int64_t> events{0};
  const auto name = std::make_tuple(message.group, message.groupDescription);
  const auto number = std::make_tuple(events.fetch_add(1), /*isP2P=*/true);
  const std::vector<at::Tensor> tensors{message.tensor};
  const std::vector<int64_t> noSplits;
  const auto count = message.tensor.numel();
  const auto first = message.globalRanks.empty()
      ? 0
      : static_cast<int>(message.globalRanks.front());
  // As in torch's NCCL backend, the rank of the event is the peer's.
  RECORD_PARAM_COMMS_DATA(
      number,
      name,
      tensors,
      tensors,
      message.peer,
      message.what,
      count,
      count,
      message.tensor.scalar_type(),
      noSplits,
      noSplits,
      first,
      1,
      message.groupSize);
  begin();
}

} // namespace dlslime
