#pragma once

#include <thread>
#include <utility>

namespace dlslime {

// True on the threads that an engine has started, which its destructor awaits:
// there it must not run. What users give us to let go of there (a
// tensor's memory with a deleter of its own) may hold the last handle to it.
inline thread_local bool onEngineThread = false;

template <typename Body>
std::thread startEngineThread(Body body) {
  return std::thread([run = std::move(body)] {
    onEngineThread = true;
    run();
  });
}

} // namespace dlslime
