#include "torch_ext/c10d/splits.h"

#include <algorithm>
#include <set>

#include "torch_ext/support/timeouts.h"

namespace dlslime {

namespace {
// Stands for the list of ranks in a merge: no rank is -1.
const std::vector<int> kOfSeveralParents{-1};
} // namespace

c10::intrusive_ptr<c10d::Backend> Splits::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<BackendOptions>& options) {
  checkedTimeout("a group's", options->timeout);
  for (const int rank : ranks) {
    TORCH_CHECK_VALUE(
        rank >= 0 && rank < size_,
        "dlslime: rank ",
        rank,
        " is not in the group that is to be split: it has ranks 0 to ",
        size_ - 1);
  }
  TORCH_CHECK_VALUE(
      std::set<int>(ranks.begin(), ranks.end()).size() == ranks.size(),
      "dlslime: a rank is listed twice among the ranks to be split off: ",
      ranks);
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  if (found == ranks.end()) {
    return nullptr;
  }
  return makeOnce(
      store,
      ranks,
      static_cast<int>(found - ranks.begin()),
      static_cast<int>(ranks.size()),
      options);
}

c10::intrusive_ptr<c10d::Backend> Splits::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const c10::intrusive_ptr<BackendOptions>& options) {
  return makeOnce(store, kOfSeveralParents, rank, size, options);
}

// Calls make_() without the lock, because make_() waits for Python.
c10::intrusive_ptr<c10d::Backend> Splits::makeOnce(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    int rank,
    int size,
    const c10::intrusive_ptr<BackendOptions>& options) {
  int number = 0;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (lastStore_ == store) {
      if (auto known = last_.lock()) {
        return known;
      }
    }
    // Merges are not numbered, because ranks may differ in how often they have
    // merged: torch gives each merge a separate store.
    number = ranks == kOfSeveralParents ? 0 : counts_[ranks]++;
  }
  std::string prefix = "dlslime/split/" + std::to_string(number);
  for (const int entry : ranks) {
    prefix += "/" + std::to_string(entry);
  }
  auto made = make_(store, prefix, rank, size, options);
  const std::lock_guard<std::mutex> guard(mutex_);
  lastStore_ = store;
  last_ = c10::weak_intrusive_ptr<c10d::Backend>(made);
  return made;
}

} // namespace dlslime
