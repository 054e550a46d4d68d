#include "torch_ext/support/shared_tensors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>

#include "base/fork_guard.h"
#include "engine/engine.h"
#include "torch_ext/support/checked_call.h"

namespace dlslime {

namespace {

// Shared memory made in this process, by address.
class SharedTensors {
 public:
  std::shared_ptr<const SharedMemory> make(size_t size) {
    const std::shared_ptr<const SharedMemory> made(
        new SharedMemory(size), [this](const SharedMemory* memory) {
          // A forked child may inherit a locked mutex, and looks nothing up.
          if (!inForkedChild()) {
            drop(memory->data());
          }
          delete memory;
        });
    const std::lock_guard<std::mutex> guard(mutex_);
    all_[made->data()] = made;
    return made;
  }
  std::shared_ptr<const SharedMemory> before(const std::byte* address) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto after = all_.upper_bound(address);
    return after == all_.begin() ? nullptr : std::prev(after)->second.lock();
  }

 private:
  void drop(const std::byte* address) {
    const std::lock_guard<std::mutex> guard(mutex_);
    all_.erase(address);
  }
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<const std::byte*, std::weak_ptr<const SharedMemory>> all_;
};

// Never destroyed: tensors may outlive static destructors.
SharedTensors& sharedTensors() {
  static auto* all = new SharedTensors;
  return *all;
}

} // namespace

at::Tensor allocateShared(int64_t count, const at::TensorOptions& options) {
  checkedCall(refuseInForkedChild);
  const auto unit = static_cast<int64_t>(options.dtype().itemsize());
  TORCH_CHECK_VALUE(
      count >= 0 && count <= std::numeric_limits<int64_t>::max() / unit,
      "dlslime: a tensor of ",
      count,
      " elements can't be made");
  const auto bytes = static_cast<size_t>(std::max<int64_t>(count * unit, 1));
  if (!options.device().is_cpu()) {
    return at::empty({count}, options);
  }
  const auto memory = checkedCall([&] { return sharedTensors().make(bytes); });
  return at::from_blob(
      memory->data(),
      {count},
      [memory](void*) {},
      options.device(at::kCPU)); // "cpu:0" is the CPU, too
}

std::optional<SharedPlace> sharedPlaceOf(const MemoryView& view) {
  auto memory = sharedTensors().before(view.data);
  if (!memory) {
    return std::nullopt;
  }
  const auto offset = static_cast<uint64_t>(view.data - memory->data());
  const bool inside =
      offset <= memory->size() && view.size <= memory->size() - offset;
  return inside ? std::optional(SharedPlace{std::move(memory), offset})
                : std::nullopt;
}

} // namespace dlslime
