#include "torch_ext/support/memory_watch.h"

#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork_guard.h"

namespace dlslime {

namespace {

using Callbacks = std::vector<std::function<void()>>;

// Callbacks for memory about to be freed, by address.
struct Watches {
  std::mutex mutex;
  std::unordered_map<void*, Callbacks> callbacks; // guarded by mutex

  static Watches& all() {
    static auto* const watches = new Watches; // tensors outlive statics
    return *watches;
  }
};

c10::DeleterFnPtr defaultDeleter() {
  return c10::GetDefaultCPUAllocator()->raw_deleter();
}

// Replaces torch's own deleter of watched memory. A hook in the allocator would
// see every tensor, and a hook in munmap() would be a patch of the C library.
void tellAndDelete(void* memory) {
  // A forked child may inherit a locked mutex, and has no peers to tell.
  if (!inForkedChild()) {
    Callbacks callbacks;
    {
      auto& watches = Watches::all();
      const std::lock_guard<std::mutex> guard(watches.mutex);
      auto found = watches.callbacks.extract(memory);
      if (!found.empty()) {
        callbacks = std::move(found.mapped());
      }
    }
    for (const auto& ended : callbacks) {
      ended();
    }
  }
  defaultDeleter()(memory);
}

} // namespace

bool isOfAllocator(const c10::Storage& storage) {
  const auto deleter = storage.data_ptr().get_deleter();
  return deleter != nullptr &&
      (deleter == defaultDeleter() || deleter == &tellAndDelete);
}

bool watchEnd(const c10::Storage& storage, std::function<void()> ended) {
  auto& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  const auto usual = defaultDeleter();
  auto& watches = Watches::all();
  const std::lock_guard<std::mutex> guard(watches.mutex);
  // The pointers stay unchanged, because other threads may be reading them now.
  if (usual == nullptr || data.get() == nullptr ||
      data.get() != data.get_context() ||
      (data.get_deleter() != &tellAndDelete &&
       !data.compare_exchange_deleter(usual, &tellAndDelete))) {
    return false;
  }
  watches.callbacks[data.get()].push_back(std::move(ended));
  return true;
}

} // namespace dlslime
