#include "base/printable.h"

#include <algorithm>
#include <cstdint>

namespace dlslime {

namespace {

// A character of valid UTF-8.
struct Character {
  uint32_t code = 0;
  size_t bytes = 0; // 0: the text does not begin with a valid character
};

// Decodes the first character by RFC 3629: neither overlong, nor a surrogate,
// nor beyond U+10FFFF.
Character characterAt(std::string_view text) {
  const auto first = static_cast<uint8_t>(text.front());
  const size_t bytes = first < 0x80 ? 1
      : first >> 5 == 6             ? 2
      : first >> 4 == 14            ? 3
      : first >> 3 == 30            ? 4
                                    : 0;
  if (bytes == 0 || bytes > text.size()) {
    return {};
  }
  uint32_t code = bytes == 1 ? first : first & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if (next >> 6 != 2) {
      return {};
    }
    code = code << 6 | (next & 0x3fU);
  }
  static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kLeast[bytes] || surrogate || code > 0x10ffff
      ? Character{}
      : Character{code, bytes};
}

// Returns false for C0, DEL and C1, and for characters changing the direction
// of text or separating lines (U+2028 to U+202E, U+2066 to U+2069).
bool shown(uint32_t code) {
  return code >= 0x20 && (code < 0x7f || code > 0x9f) &&
      (code < 0x2028 || code > 0x202e) && (code < 0x2066 || code > 0x2069);
}

void escape(uint8_t byte, std::string& to) {
  static constexpr char kDigits[] = "0123456789abcdef";
  to += "\\x";
  to += kDigits[byte >> 4];
  to += kDigits[byte & 15];
}

} // namespace

std::string printable(std::string_view text, size_t most) {
  std::string out;
  while (!text.empty() && out.size() < most) {
    const auto next = characterAt(text);
    const size_t bytes = std::max<size_t>(next.bytes, 1);
    if (next.bytes > 0 && shown(next.code)) {
      out += text.substr(0, bytes);
    } else {
      for (const char byte : text.substr(0, bytes)) {
        escape(static_cast<uint8_t>(byte), out);
      }
    }
    text.remove_prefix(bytes);
  }
  return text.empty() ? out : out + "...";
}

} // namespace dlslime
