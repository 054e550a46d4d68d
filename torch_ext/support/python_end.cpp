#include "torch_ext/support/python_end.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <thread>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "engine/engine.h"
#include "torch_ext/support/callback_thread.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

namespace {

// Limit for finishing the callbacks of users.
constexpr milliseconds kEndPatience{1000};
constexpr milliseconds kMostPatience{10000}; // to leave PythonScopes
// Time for threads that have read `ends` as false and are about to take the
// GIL.
constexpr milliseconds kOnTheWay{5};

std::atomic<bool> ends{false};
std::atomic<int> inside{0}; // threads in a PythonScope
thread_local int depth = 0; // PythonScopes of the thread

// Counts the thread as inside, unless Python ends. Sequential consistency
// orders the count and the flag for all threads: a thread missing in the count
// sees the flag.
bool enter() {
  inside.fetch_add(1, std::memory_order_seq_cst);
  if (!ends.load(std::memory_order_seq_cst)) {
    return true;
  }
  inside.fetch_sub(1, std::memory_order_seq_cst);
  return false;
}

// Whether the calling thread, not the main thread, has the GIL. Once Python has
// begun to end, no such thread has the GIL, but PyGILState_Check() would return
// true.
bool mayHaveGil() {
#if PY_VERSION_HEX >= 0x030D0000
  const bool finalizing = Py_IsFinalizing() != 0;
#else
  const bool finalizing = _Py_IsFinalizing() != 0;
#endif
  return Py_IsInitialized() != 0 && !finalizing && PyGILState_Check() != 0;
}

[[noreturn]] void stayHere() {
  for (;;) {
    pause();
  }
}

std::terminate_handler usualTerminate = nullptr;

// Before Python 3.14, a daemon thread that asks for the GIL too late ends by
// pthread_exit(). If a destructor is on the way, as of any scope without the
// GIL, C++ ends the process. The thread stays blocked instead, as since 3.14.
[[noreturn]] void stayIfThreadIsEnded() {
  if (!onMainThread() && std::current_exception() == nullptr) {
    stayHere();
  }
  if (usualTerminate != nullptr) {
    usualTerminate();
  }
  std::abort();
}

} // namespace

PythonScope::PythonScope() : counted_(enter()) {
  depth += counted_ ? 1 : 0;
  ours_ = !counted_ && (onMainThread() || mayHaveGil());
}

PythonScope::~PythonScope() {
  if (counted_) {
    --depth;
    inside.fetch_sub(1, std::memory_order_seq_cst);
  }
}

OutsidePython::OutsidePython() : depth_(depth) {
  inside.fetch_sub(depth_, std::memory_order_seq_cst);
}

OutsidePython::~OutsidePython() {
  inside.fetch_add(depth_, std::memory_order_seq_cst);
  if (depth_ > 0 && ends.load(std::memory_order_seq_cst)) {
    inside.fetch_sub(depth_, std::memory_order_seq_cst);
    stayHere();
  }
}

bool pythonEnds() {
  return ends.load(std::memory_order_relaxed);
}

void beginPythonEnd() {
  if (inForkedChild()) {
    return;
  }
  usualTerminate = std::set_terminate(stayIfThreadIsEnded);
  if (const auto engine = Engine::existing()) {
    engine->lingerAll();
  }
  CallbackThread::instance().drain(kEndPatience);
  CallbackThread::concurrent().drain(kEndPatience);
  ends.store(true, std::memory_order_seq_cst);
  const auto deadline = deadlineAfter(kMostPatience);
  while (inside.load(std::memory_order_seq_cst) != 0 &&
         Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  std::this_thread::sleep_for(kOnTheWay);
}

StaysWhenPythonEnds::~StaysWhenPythonEnds() {
  if (pythonEnds() && !onMainThread() && !mayHaveGil()) {
    inside.fetch_sub(depth, std::memory_order_seq_cst);
    stayHere();
  }
}

} // namespace dlslime
