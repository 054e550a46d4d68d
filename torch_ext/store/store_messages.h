#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_ext/support/waiting.h"

namespace dlslime {

// Message between the ranks of a MessageStore.
struct StoreMessage {
  enum class Kind : uint32_t { kPart = 1, kDone, kFailed };

  Kind kind = Kind::kPart;
  int origin = 0; // rank that set the key, or failed
  std::string key;
  uint64_t total = 0; // bytes of the whole value
  uint64_t offset = 0;
  ByteSpan part; // bytes of the value, or the text of a failure
};
constexpr size_t kStoreHeadBytes = 32; // of a message without key and part

std::shared_ptr<Bytes> encode(const StoreMessage& message);
// Returns none if the message is malformed.
std::optional<StoreMessage> decodeStoreMessage(ByteSpan bytes);

std::string textOf(ByteSpan bytes);
// Says that nothing has come from the `silent` ranks in time, and describes the
// link to each rank with a receive.
std::string textOfSilent(
    const GroupHandle& handle,
    milliseconds limit,
    const std::vector<std::pair<int, OperationPtr>>& silent);

} // namespace dlslime
