#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string_view>

#include "base/printable.h"
#include "base/threads/mutex.h"

namespace dlslime {

namespace {

std::atomic<LogLevel> currentLevel{LogLevel::kWarning};

struct SinkSlot {
  Mutex mutex;
  LogSink sink GUARDED_BY(mutex);

  static SinkSlot& only() {
    // Never destroyed: threads may log while the process exits.
    static auto* const slot = new SinkSlot;
    return *slot;
  }
};

char levelLetter(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return 'E';
    case LogLevel::kWarning:
      return 'W';
    case LogLevel::kInfo:
      return 'I';
    case LogLevel::kDebug:
      return 'D';
  }
  return '?';
}

// Escapes all control characters except newlines: parts of the text may come
// from peers, and no terminal must obey a peer. Texts of our own may have
// several lines.
std::string cleaned(std::string_view text) {
  constexpr size_t kMostLineBytes = 16384;
  std::string out;
  for (;;) {
    const size_t end = text.find('\n');
    out += printable(text.substr(0, end), kMostLineBytes);
    if (end == std::string_view::npos) {
      return out;
    }
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

} // namespace

void setLogLevel(LogLevel level) {
  currentLevel.store(level, std::memory_order_relaxed);
}

void setLogSink(LogSink sink) {
  auto& slot = SinkSlot::only();
  const MutexLock lock(slot.mutex);
  slot.sink = std::move(sink);
}

bool logEnabled(LogLevel level) {
  return level <= currentLevel.load(std::memory_order_relaxed);
}

void log(LogLevel level, const std::string& line) {
  if (!logEnabled(level)) {
    return;
  }
  const auto text = cleaned(line);
  auto& slot = SinkSlot::only();
  const MutexLock lock(slot.mutex);
  if (slot.sink) {
    slot.sink(level, text);
    return;
  }
  std::fprintf(
      stderr,
      "[dlslime %c pid %d] %s\n",
      levelLetter(level),
      getpid(),
      text.c_str());
}

void logWithoutMemory(const char* what) noexcept {
  std::fprintf(
      stderr,
      "[dlslime E pid %d] %s: this process has no memory left\n",
      getpid(),
      what);
}

} // namespace dlslime
