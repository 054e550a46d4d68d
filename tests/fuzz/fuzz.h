#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#include "base/bytes.h"
#include "base/log.h"
#include "base/status.h"

// The only function of a target, called by libFuzzer for each input.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace dlslime::fuzz {

// Ends the process unless `holds`, so that libFuzzer keeps the input.
inline void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "the harness requires: %s\n", what);
    std::abort();
  }
}

// Runs a decoder; returns false if the decoder throws Error. Any other
// exception ends the process.
template <typename Decode>
bool takes(const Decode& decode) {
  try {
    decode();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The bytes of an input, from which a harness draws its steps; zeros follow the
// end.
class Input {
 public:
  Input(const uint8_t* data, size_t size)
      : rest_(std::as_bytes(std::span(data, size))) {}

  bool more() const {
    return !rest_.empty();
  }
  template <typename T>
  T number() {
    T value{};
    const auto bytes = upTo(sizeof(T));
    copyBytes(&value, bytes.data(), bytes.size());
    return value;
  }
  // Returns a number from 0 to most - 1.
  size_t below(size_t most) {
    return (most > 256 ? number<uint32_t>() : number<uint8_t>()) % most;
  }
  bool oneIn(size_t times) {
    return below(times) == 0;
  }
  template <typename T>
  T any(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }
  ByteSpan upTo(size_t most) {
    const auto taken = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  // Returns the bytes that follow a length of two bytes.
  ByteSpan blob() {
    return upTo(number<uint16_t>());
  }
  ByteSpan rest() {
    return upTo(rest_.size());
  }

 private:
  ByteSpan rest_;
};

// Copies the bytes without anything behind, so that the address sanitizer sees
// a read beyond the end; libFuzzer's own buffer is as exact.
inline Bytes copyOf(ByteSpan bytes) {
  return {bytes.begin(), bytes.end()};
}

inline std::string textOf(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Requires that a text, perhaps with a peer's text in it, can't forge a line of
// a log.
inline void requirePlain(const std::string& text) {
  for (const char character : text) {
    require(
        static_cast<uint8_t>(character) >= 0x20 && character != 0x7f,
        "a text for people has no control characters");
  }
}

// Makes, checks and drops every line of the log.
inline void checkLog() {
  setLogLevel(LogLevel::kDebug);
  setLogSink([](LogLevel, const std::string& line) { requirePlain(line); });
}

} // namespace dlslime::fuzz
