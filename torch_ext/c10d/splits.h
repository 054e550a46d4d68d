#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "torch_ext/support/options.h"

namespace dlslime {

// Makes the backend of a group that comes from another one: with the prefix of
// its keys in the store, this process's rank in it, and its size.
using MakeChild = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>&,
    const std::string&,
    int,
    int,
    const c10::intrusive_ptr<BackendOptions>&)>;

// The groups that torch splits off one, or merges it into. All ranks of a new
// group do so in the same order. Any thread.
class Splits {
 public:
  Splits(int rank, int size, MakeChild make)
      : rank_(rank), size_(size), make_(std::move(make)) {}

  // `ranks` are of the parent, in the order of the new ones; null: this process
  // is none of them. torch asks once for each kind of device, with the same
  // store. Throws ValueError.
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
  // Guarded by mutex_: how many there were of these ranks, and the last one.
  std::map<std::vector<int>, int> counts_;
  c10::intrusive_ptr<c10d::Store> lastStore_;
  c10::weak_intrusive_ptr<c10d::Backend> last_{
      c10::intrusive_ptr<c10d::Backend>()};
};

} // namespace dlslime
