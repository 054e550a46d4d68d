#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace dlslime {

// Writes a JSON text from front to back. The caller closes what it opens, and
// gives each member of an object a key.
class JsonWriter {
 public:
  JsonWriter& open(char bracket) { // '{' or '['
    separate();
    text_ += bracket;
    first_ = true;
    return *this;
  }
  JsonWriter& close(char bracket) { // '}' or ']'
    text_ += bracket;
    first_ = false;
    return *this;
  }
  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(std::integral auto number) {
    separate();
    text_ += std::to_string(number);
    return *this;
  }
  template <typename Value>
  JsonWriter& member(std::string_view name, const Value& content) {
    return key(name).value(content);
  }
  std::string take() {
    return std::move(text_);
  }

 private:
  void separate();
  void quote(std::string_view text);

  std::string text_;
  bool first_ = true; // nothing stands before in the object or list
  bool keyed_ = false; // a key has been written, and its value comes next
};

} // namespace dlslime
