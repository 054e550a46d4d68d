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

// The one function of a target, which libFuzzer calls for each input.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace dlslime::fuzz {

// Ends the process unless `holds`, so that libFuzzer keeps the input.
inline void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "the harness requires: %s\n", what);
    std::abort();
  }
}

// Runs a decoder. False: it has thrown Error. Anything else that it throws ends
// the process.
template <typename Decode>
bool takes(const Decode& decode) {
  try {
    decode();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The bytes of one input, from which a harness draws what it does next. Zeros
// follow the end.
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
  // 0 to most - 1.
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
  // A length of two bytes, and so many bytes.
  ByteSpan blob() {
    return upTo(number<uint16_t>());
  }
  ByteSpan rest() {
    return upTo(rest_.size());
  }

 private:
  ByteSpan rest_;
};

// A copy with nothing behind it, so that the address sanitizer sees a read
// beyond its end; libFuzzer's own buffer is such a one.
inline Bytes copyOf(ByteSpan bytes) {
  return {bytes.begin(), bytes.end()};
}

inline std::string textOf(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Texts that may contain those of a peer: no line of a log may be forged.
inline void requirePlain(const std::string& text) {
  for (const char character : text) {
    require(
        static_cast<uint8_t>(character) >= 0x20 && character != 0x7f,
        "a text for people has no control characters");
  }
}

// Every line of the log is made, checked and dropped.
inline void checkLog() {
  setLogLevel(LogLevel::kDebug);
  setLogSink([](LogLevel, const std::string& line) { requirePlain(line); });
}

} // namespace dlslime::fuzz
