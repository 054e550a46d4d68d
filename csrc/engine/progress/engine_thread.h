#pragma once

#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace dlslime {

// True on threads started by an engine. The engine's destructor joins these
// threads and so must not run on any of them, although an object of the program
// freed there (a tensor's memory with a deleter) may hold the last handle to
// the engine.
inline thread_local bool onEngineThread = false;

// Starts a thread with onEngineThread set. Throws Error{kExhausted} if no
// thread can be started.
template <typename Body>
std::thread startEngineThread(Body body) {
  try {
    return std::thread([run = std::move(body)] {
      onEngineThread = true;
      run();
    });
  } catch (const std::system_error& error) {
    throw Error(statusOf(error));
  }
}

// Runs one round of an endless thread. False: the round ran out of memory, and
// the call has paused so that the caller may try again.
template <typename Round>
bool surviveWantOfMemory(const char* what, const Round& round) {
  constexpr milliseconds kPause{10};
  try {
    round();
    return true;
  } catch (const std::bad_alloc&) {
    static std::atomic<bool> said{false};
    if (!said.exchange(true)) {
      logWithoutMemory(what);
    }
    std::this_thread::sleep_for(kPause);
    return false;
  }
}

// Repeats `work` until no memory is lacking; `work` must be safe to begin
// again.
template <typename Work>
void doInSpiteOfWantOfMemory(const char* what, const Work& work) {
  while (!surviveWantOfMemory(what, work)) {
  }
}

} // namespace dlslime
