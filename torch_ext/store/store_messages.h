#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_ext/support/waiting.h"

namespace dlslime {

// What the ranks of a MessageStore send each other.
struct StoreMessage {
  enum class Kind : uint32_t { kPart = 1, kDone, kFailed };

  Kind kind = Kind::kPart;
  int origin = 0; // the rank that set the key, or failed
  std::string key;
  uint64_t total = 0; // bytes of the value, of which this is a part
  uint64_t offset = 0;
  ByteSpan part; // or the text of a failure
};
constexpr size_t kStoreHeadBytes = 32; // of one without its key and part

std::shared_ptr<Bytes> encode(const StoreMessage& message);
// None: it is malformed.
std::optional<StoreMessage> decodeStoreMessage(ByteSpan bytes);

std::string textOf(ByteSpan bytes);
// That nothing has come from these ranks in time, and what is known of the way
// to those with a receive.
std::string textOfSilent(
    const GroupHandle& handle,
    milliseconds limit,
    const std::vector<std::pair<int, OperationPtr>>& silent);

} // namespace dlslime
