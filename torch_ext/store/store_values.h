#pragma once

#include <map>
#include <string>
#include <utility>

#include "torch_ext/store/store_messages.h"

namespace dlslime {

// Throws ValueError if a key of `size` bytes is longer than `most` bytes.
void requireKeySize(size_t size, size_t most);

// Values set by the rank itself, and values coming from peers in parts. Not
// synchronised.
class StoreValues {
 public:
  explicit StoreValues(int size) : mostOfOne_(mostOf(size)) {}

  void set(const std::string& key, ByteSpan value);
  // Adds a part of a value from a peer. Returns false, and keeps nothing, once
  // the peer has set more than any rank needs.
  bool add(const StoreMessage& message);
  // Returns null if the key is not set, or the value not whole.
  const Bytes* find(const std::string& key) const;

  std::string tooMuch() const {
    return "it has set more than " + std::to_string(mostOfOne_) +
        " bytes in the store of the group's collectives";
  }

 private:
  // Returns the most bytes that a rank may set: Gloo sets an address for each
  // rank, with keys and heads.
  static constexpr size_t mostOf(int size) {
    constexpr size_t kAtLeast = 1024 * 1024, kForEach = 4 * 1024;
    return kAtLeast + static_cast<size_t>(size) * kForEach;
  }

  const size_t mostOfOne_; // bytes
  std::map<std::string, Bytes> values_;
  // Values not whole yet, by origin and key.
  std::map<std::pair<int, std::string>, Bytes> parts_;
  std::map<int, size_t> taken_; // bytes set so far, by rank
};

} // namespace dlslime
