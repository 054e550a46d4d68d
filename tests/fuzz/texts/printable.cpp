// Texts of a peer on their way into logs and exceptions.
#include "base/printable.h"

#include "fuzz.h"

namespace dlslime::fuzz {
namespace {

// Returns the number of bytes of the well-formed first character (Unicode,
// table 3-7); 0 for none.
size_t wellFormed(std::string_view text) {
  const auto at = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : 0;
  };
  const auto in = [](unsigned value, unsigned least, unsigned most) {
    return value >= least && value <= most;
  };
  const unsigned first = at(0);
  if (first < 0x80) {
    return 1;
  }
  if (in(first, 0xc2, 0xdf)) {
    return in(at(1), 0x80, 0xbf) ? 2 : 0;
  }
  if (in(first, 0xe0, 0xef)) {
    const unsigned least = first == 0xe0 ? 0xa0 : 0x80;
    const unsigned most = first == 0xed ? 0x9f : 0xbf;
    return in(at(1), least, most) && in(at(2), 0x80, 0xbf) ? 3 : 0;
  }
  if (in(first, 0xf0, 0xf4)) {
    const unsigned least = first == 0xf0 ? 0x90 : 0x80;
    const unsigned most = first == 0xf4 ? 0x8f : 0xbf;
    return in(at(1), least, most) && in(at(2), 0x80, 0xbf) &&
            in(at(3), 0x80, 0xbf)
        ? 4
        : 0;
  }
  return 0;
}

// Returns true for C1 controls, and for characters that reverse text or
// separate lines.
bool unseen(std::string_view character) {
  return (character.size() == 2 && character[0] == '\xc2' &&
          static_cast<uint8_t>(character[1]) < 0xa0) ||
      (character >= "\xe2\x80\xa8" && character <= "\xe2\x80\xae") ||
      (character >= "\xe2\x81\xa6" && character <= "\xe2\x81\xa9");
}

void checkText(std::string_view text) {
  requirePlain(std::string(text));
  while (!text.empty()) {
    const size_t bytes = wellFormed(text);
    require(bytes != 0, "it is UTF-8");
    require(!unseen(text.substr(0, bytes)), "it shows what it says");
    text.remove_prefix(bytes);
  }
}

void run(Input input) {
  const size_t most = input.below(64) * (input.oneIn(2) ? 1 : 64);
  const auto text = textOf(input.rest());
  const auto shown = printable(text, most);
  checkText(shown);
  require(shown.size() <= most + 15 + 3, "it is no longer than asked for");
  checkText(printable(text));
  if (most >= 4 * text.size() && text == shown) {
    require(printable(shown, most) == shown, "it is made printable once");
  }
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
