#include "torch_ext/store/store_messages.h"

#include "base/bytes.h"

namespace dlslime {

namespace {
// Largest accepted value, in bytes. A sane peer sends less.
constexpr uint64_t kMostValue = uint64_t{1} << 30;
constexpr size_t kMostNamed = 16;
} // namespace

std::shared_ptr<Bytes> encode(const StoreMessage& message) {
  ByteWriter writer;
  writer.number(static_cast<uint32_t>(message.kind));
  writer.number(static_cast<uint32_t>(message.origin));
  writer.text(message.key);
  writer.number(message.total);
  writer.number(message.offset);
  writer.blob(message.part);
  return std::make_shared<Bytes>(writer.take());
}

std::optional<StoreMessage> decodeStoreMessage(ByteSpan bytes) {
  ByteReader reader(bytes);
  StoreMessage message;
  message.kind = static_cast<StoreMessage::Kind>(reader.number<uint32_t>());
  message.origin = static_cast<int>(reader.number<uint32_t>());
  message.key = reader.text();
  message.total = reader.number<uint64_t>();
  message.offset = reader.number<uint64_t>();
  message.part = reader.blob();
  const bool known = message.kind == StoreMessage::Kind::kPart ||
      message.kind == StoreMessage::Kind::kDone ||
      message.kind == StoreMessage::Kind::kFailed;
  const bool sound = reader.atEnd() && known && message.total <= kMostValue &&
      message.offset <= message.total &&
      message.part.size() <= message.total - message.offset;
  return sound ? std::optional(message) : std::nullopt;
}

std::string textOf(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string textOfSilent(
    const GroupHandle& handle,
    milliseconds limit,
    const std::vector<std::pair<int, OperationPtr>>& silent) {
  std::string text =
      "Timed out after " + std::to_string(limit.count()) + " ms: ";
  if (silent.empty()) {
    return text +
        "every rank has begun the collective, but not all ranks are connected "
        "yet";
  }
  text += "nothing has come from ";
  for (size_t i = 0; i < silent.size() && i < kMostNamed; ++i) {
    const auto& [rank, receive] = silent[i];
    text += (i == 0 ? "rank " : ", rank ") + std::to_string(rank);
    if (receive) {
      text += " (" + handle.engine->describeLink(*handle.group, *receive) + ")";
    }
  }
  if (silent.size() > kMostNamed) {
    text += " and " + std::to_string(silent.size() - kMostNamed) + " more";
  }
  return text;
}

} // namespace dlslime
