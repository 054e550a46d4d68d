#pragma once

#include <map>
#include <string>
#include <utility>

#include "torch_ext/store/store_messages.h"

namespace dlslime {

// What the ranks of a MessageStore have set, and what has come of the rest. Not
// synchronised.
class StoreValues {
 public:
  explicit StoreValues(int size) : mostOfOne_(mostOf(size)) {}

  void set(const std::string& key, ByteSpan value);
  // A part of another rank's value. False: this rank has set more than any
  // rank needs, and nothing more is kept of it.
  bool add(const StoreMessage& message);
  // Null: it is not set, or not whole.
  const Bytes* find(const std::string& key) const;

  std::string tooMuch() const {
    return "it has set more than " + std::to_string(mostOfOne_) +
        " bytes in the store of the group's collectives";
  }

 private:
  // An address for each rank is what Gloo sets; with keys and heads.
  static constexpr size_t mostOf(int size) {
    constexpr size_t kAtLeast = 1024 * 1024, kForEach = 4 * 1024;
    return kAtLeast + static_cast<size_t>(size) * kForEach;
  }

  const size_t mostOfOne_; // bytes
  std::map<std::string, Bytes> values_;
  std::map<std::pair<int, std::string>, Bytes> parts_; // not whole yet
  std::map<int, size_t> taken_; // bytes that each rank has set
};

} // namespace dlslime
