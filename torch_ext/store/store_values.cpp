#include "torch_ext/store/store_values.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace dlslime {

void requireKeySize(size_t size, size_t most) {
  TORCH_CHECK_VALUE(
      size <= most,
      "dlslime: a key of ",
      size,
      " bytes: at most ",
      most,
      " are possible");
}

void StoreValues::set(const std::string& key, ByteSpan value) {
  values_[key] = Bytes(value.begin(), value.end());
}

bool StoreValues::add(const StoreMessage& message) {
  auto& taken = taken_[message.origin];
  taken += kStoreHeadBytes + message.key.size() + message.part.size();
  if (taken > mostOfOne_) {
    return false;
  }
  auto& value = parts_[{message.origin, message.key}];
  // A key set again starts anew.
  value.resize(std::min<size_t>(value.size(), message.offset));
  value.insert(value.end(), message.part.begin(), message.part.end());
  if (value.size() == message.total) { // false after a gap
    values_[message.key] = std::move(value);
    parts_.erase({message.origin, message.key});
  }
  return true;
}

const Bytes* StoreValues::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

} // namespace dlslime
