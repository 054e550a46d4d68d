#include "engine/inspect/json.h"

namespace dlslime {

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  quote(name);
  text_ += ':';
  keyed_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  quote(text);
  return *this;
}

void JsonWriter::separate() {
  if (!first_ && !keyed_) {
    text_ += ',';
  }
  first_ = keyed_ = false;
}

void JsonWriter::quote(std::string_view text) {
  constexpr char kSpace = ' ';
  constexpr auto kDigits = "0123456789abcdef";
  text_ += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (c >= 0 && c < kSpace) {
      text_ += "\\u00";
      text_ += kDigits[c >> 4];
      text_ += kDigits[c & 0xf];
    } else {
      text_ += c;
    }
  }
  text_ += '"';
}

} // namespace dlslime
