#pragma once

#include <cstdio>
#include <string>

#include "interface/memory.h"

namespace dlslime::testing {

// Encodes bytes as an argument for a child process.
inline std::string toHex(ByteSpan bytes) {
  std::string text;
  for (const auto byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", unsigned(byte));
    text += digits;
  }
  return text;
}

inline Bytes fromHex(const std::string& text) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(
        static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

} // namespace dlslime::testing
