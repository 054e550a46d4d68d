#include "committed/driver.h"

#include <dlfcn.h>

#include <cstdlib>

namespace committed {

namespace {

template <typename Pointer>
void bind(void* library, const char* name, Pointer& function) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
  if (function == nullptr) {
    throw std::runtime_error(std::string("libcuda has no ") + name);
  }
}

Driver load() {
  const char* const other = std::getenv("DLSLIME_CUDA_LIBRARY");
  void* const library =
      dlopen(other != nullptr ? other : "libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    throw std::runtime_error(dlerror());
  }
  Driver made{};
  bind(library, "cuInit", made.init);
  bind(library, "cuGetErrorName", made.getErrorName);
  bind(library, "cuDeviceGetCount", made.deviceGetCount);
  bind(library, "cuDevicePrimaryCtxRetain", made.retainContext);
  bind(library, "cuCtxSetCurrent", made.setContext);
  bind(library, "cuMemAlloc_v2", made.allocate);
  bind(library, "cuMemFree_v2", made.free);
  bind(library, "cuMemHostRegister_v2", made.hostRegister);
  bind(library, "cuMemHostGetDevicePointer_v2", made.hostPointer);
  bind(library, "cuMemcpyAsync", made.copy);
  bind(library, "cuStreamCreateWithPriority", made.streamCreate);
  bind(library, "cuStreamSynchronize", made.streamSynchronize);
  bind(library, "cuStreamWriteValue32_v2", made.writeValue);
  bind(library, "cuStreamWaitValue32_v2", made.waitValue);
  bind(library, "cuEventCreate", made.eventCreate);
  bind(library, "cuEventRecord", made.eventRecord);
  bind(library, "cuEventQuery", made.eventQuery);
  bind(library, "cuEventElapsedTime", made.eventElapsed);
  bind(library, "cuStreamWaitEvent", made.streamWaitEvent);
  bind(library, "cuIpcGetMemHandle", made.ipcGetHandle);
  bind(library, "cuIpcOpenMemHandle_v2", made.ipcOpenHandle);
  bind(library, "cuModuleLoadData", made.moduleLoad);
  bind(library, "cuModuleGetFunction", made.moduleFunction);
  bind(library, "cuLaunchKernel", made.launch);
  made.check(made.init(0), "cuInit");
  return made;
}

} // namespace

void Driver::check(Result result, const char* what) const {
  if (result != Result::kSuccess) {
    const char* name = nullptr;
    getErrorName(result, &name);
    throw std::runtime_error(
        std::string(what) + ": " + (name != nullptr ? name : "unknown error"));
  }
}

const Driver& driver() {
  static const Driver loaded = load();
  return loaded;
}

} // namespace committed
