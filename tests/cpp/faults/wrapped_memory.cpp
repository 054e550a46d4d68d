// Allocations and threads of C++: both fail by an exception.
#include <pthread.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <system_error>
#include <thread>

#include "faults/fault_plan.h"

using namespace dlslime::testing;

namespace {

void* runThread(void* argument) noexcept {
  const RoleScope role(ThreadRole::kEngine);
  std::unique_ptr<std::thread::_State> state(
      static_cast<std::thread::_State*>(argument));
  state->_M_run();
  return nullptr;
}

} // namespace

void* operator new(size_t size) {
  void* const memory =
      allocationFails() ? nullptr : std::malloc(size != 0 ? size : 1);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
void* operator new[](size_t size) {
  return operator new(size);
}
void* operator new(size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return allocationFails() ? nullptr : std::malloc(size != 0 ? size : 1);
}
void* operator new[](size_t size, const std::nothrow_t& tag) noexcept {
  return operator new(size, tag);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t /*size*/) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t /*size*/) noexcept {
  std::free(memory);
}

// std::thread::_M_start_thread() of libstdc++; marks the threads as the
// engine's.
extern "C" {
#define FAULTS_START_THREAD \
  __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE
void FAULTS_START_THREAD(
    std::thread* made,
    std::unique_ptr<std::thread::_State>* state,
    void (*depend)());
void FAULTS_START_THREAD(
    std::thread* made,
    std::unique_ptr<std::thread::_State>* state,
    void (* /*depend*/)()) {
  if (const int error = faultOf(Call::kThread)) {
    throw std::system_error(error, std::generic_category(), "no thread");
  }
  static_assert(sizeof(std::thread) == sizeof(pthread_t));
  const RoleScope own(ThreadRole::kTest);
  const int error = pthread_create(
      reinterpret_cast<pthread_t*>(made), nullptr, runThread, state->get());
  if (error != 0) {
    throw std::system_error(error, std::generic_category(), "no thread");
  }
  state->release();
}
}
