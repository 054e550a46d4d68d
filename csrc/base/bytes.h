#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace dlslime {

using Bytes = std::vector<std::byte>;
using ByteSpan = std::span<const std::byte>;

// Copies like memcpy, but permits null pointers if `size` is 0: empty spans and
// torch's empty tensors have null pointers.
inline void copyBytes(void* destination, const void* source, size_t size) {
  if (size != 0) {
    std::memcpy(destination, source, size);
  }
}

// Little-endian encoder of the records exchanged by processes while connecting
// (docs/protocol.md). Strings and blobs carry a 32-bit length.
class ByteWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_integral_v<T>);
    using Unsigned = std::make_unsigned_t<T>;
    auto rest = static_cast<uint64_t>(static_cast<Unsigned>(value));
    for (size_t i = 0; i < sizeof(T); ++i) {
      out_.push_back(static_cast<std::byte>(rest & 0xff));
      rest >>= 8;
    }
  }
  void blob(ByteSpan bytes) {
    number(static_cast<uint32_t>(bytes.size()));
    raw(bytes);
  }
  void text(std::string_view value) {
    blob(std::as_bytes(std::span(value)));
  }
  void raw(ByteSpan bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  Bytes take() {
    return std::move(out_);
  }

 private:
  Bytes out_;
};

// Decoder of ByteWriter's records, never reading past the end. After the first
// short read every value is zero or empty and ok() is false, so a caller reads
// all fields and checks once.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : rest_(bytes) {}

  template <typename T>
  T number() {
    uint64_t value = 0;
    const auto bytes = raw(sizeof(T));
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    }
    return static_cast<T>(value);
  }
  ByteSpan raw(size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const auto result = rest_.first(size);
    rest_ = rest_.subspan(size);
    return result;
  }
  ByteSpan blob() {
    return raw(number<uint32_t>());
  }
  std::string text() {
    const auto bytes = blob();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool ok() const {
    return ok_;
  }
  bool atEnd() const {
    return ok_ && rest_.empty();
  }

 private:
  ByteSpan rest_;
  bool ok_ = true;
};

} // namespace dlslime
