#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dlslime {

// Table of values under ids sent to peers: an id released before, or made up by
// a peer, is never mistaken for a live id. No id is zero or has one of the two
// highest bits set: callers mark ids by the two bits. A warm table allocates
// nothing. `First` is for tests.
template <typename T, uint32_t First = 1>
class Slab {
 public:
  static constexpr uint32_t kGenerations =
      (1U << 30) - 1; // generations count from 1
  uint64_t insert(T value) {
    if (free_.empty()) {
      free_.reserve(entries_.size() + 1); // take() must not allocate
      entries_.emplace_back();
      free_.push_back(static_cast<uint32_t>(entries_.size() - 1));
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    auto& entry = entries_[index];
    entry.value = std::move(value);
    entry.live = true;
    ++size_;
    return idOf(index);
  }
  T* find(uint64_t id) {
    return const_cast<T*>(std::as_const(*this).find(id));
  }
  const T* find(uint64_t id) const {
    const auto index = static_cast<uint32_t>(id);
    if (index >= entries_.size() || !entries_[index].live ||
        idOf(index) != id) {
      return nullptr;
    }
    return &entries_[index].value;
  }
  T take(uint64_t id) {
    const auto index = static_cast<uint32_t>(id);
    auto& entry = entries_[index];
    entry.live = false;
    entry.generation = entry.generation % kGenerations + 1;
    free_.push_back(index);
    --size_;
    return std::exchange(entry.value, T{});
  }
  size_t size() const {
    return size_;
  }
  // Returns the ids of all live values; the caller may take() each of the
  // values.
  std::vector<uint64_t> ids() const {
    std::vector<uint64_t> result;
    for (uint32_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].live) {
        result.push_back(idOf(i));
      }
    }
    return result;
  }

 private:
  struct Entry {
    T value{};
    uint32_t generation = First;
    bool live = false;
  };
  uint64_t idOf(uint32_t index) const {
    return (static_cast<uint64_t>(entries_[index].generation) << 32) | index;
  }

  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
  size_t size_ = 0;
};

} // namespace dlslime
