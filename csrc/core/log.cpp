#include "core/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace dlslime {

namespace {

std::atomic<LogLevel> currentLevel{LogLevel::kWarning};

// Never destroyed: threads may log while the process exits.
std::mutex& sinkMutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
LogSink& sinkSlot() {
  static auto* sink = new LogSink;
  return *sink;
}

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

} // namespace

void setLogLevel(LogLevel level) {
  currentLevel.store(level, std::memory_order_relaxed);
}

void setLogSink(LogSink sink) {
  const std::lock_guard<std::mutex> guard(sinkMutex());
  sinkSlot() = std::move(sink);
}

bool logEnabled(LogLevel level) {
  return level <= currentLevel.load(std::memory_order_relaxed);
}

void log(LogLevel level, const std::string& line) {
  if (!logEnabled(level)) {
    return;
  }
  const std::lock_guard<std::mutex> guard(sinkMutex());
  if (sinkSlot()) {
    sinkSlot()(level, line);
    return;
  }
  std::fprintf(
      stderr,
      "[dlslime %c pid %d] %s\n",
      levelLetter(level),
      getpid(),
      line.c_str());
}

} // namespace dlslime
