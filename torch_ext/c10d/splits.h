#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "torch_ext/support/options.h"

namespace dlslime {

// Makes the backend of a group that was split off or merged. The arguments are
// the store, the prefix of the group's keys in the store, this process's rank
// in the group, the group's size, and the options.
using MakeChild = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>&,
    const std::string&,
    int,
    int,
    const c10::intrusive_ptr<BackendOptions>&)>;

// Groups that torch splits off a group, or merges a group into. All ranks of a
// new group take part, in the same order. Any thread.
class Splits {
 public:
  Splits(int rank, int size, MakeChild make)
      : rank_(rank), size_(size), make_(std::move(make)) {}

  // Splits off the parent's `ranks`, in the order of the new ranks. Returns
  // null if this process is not among the ranks. torch asks once for each kind
  // of device, with the same store, and gets a single backend. Throws
  // ValueError.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<BackendOptions>& options);
  c10::intrusive_ptr<c10d::Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      const c10::intrusive_ptr<BackendOptions>& options);

 private:
  c10::intrusive_ptr<c10d::Backend> makeOnce(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      int rank,
      int size,
      const c10::intrusive_ptr<BackendOptions>& options);

  const int rank_, size_;
  const MakeChild make_;
  std::mutex mutex_;
  // mutex_ guards the members below: the number of splits by list of ranks, and
  // the last backend made.
  std::map<std::vector<int>, int> counts_;
  c10::intrusive_ptr<c10d::Store> lastStore_;
  c10::weak_intrusive_ptr<c10d::Backend> last_{
      c10::intrusive_ptr<c10d::Backend>()};
};

} // namespace dlslime
