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

// True on the threads that an engine has started, which its destructor awaits:
// there it must not run. What users give us to let go of there (a tensor's
// memory with a deleter of its own) may hold the last handle to it.
inline thread_local bool onEngineThread = false;

// Throws Error{kExhausted}: no thread can be started.
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

// One round of a thread that goes on for ever: where there is no memory for it,
// another one is tried after a pause. True: there was.
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

// The whole of such a thread's work, which may be begun again.
template <typename Work>
void doInSpiteOfWantOfMemory(const char* what, const Work& work) {
  while (!surviveWantOfMemory(what, work)) {
  }
}

} // namespace dlslime
