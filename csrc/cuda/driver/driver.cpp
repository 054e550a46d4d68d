#include "cuda/driver/driver.h"

#include <dlfcn.h>

#include <cstdlib>

namespace dlslime::cuda {

namespace {

// Variable naming a library to load instead of libcuda, for tests.
constexpr const char* kLibraryVariable = "DLSLIME_CUDA_LIBRARY";
// The oldest CUDA version with all indispensable functions in the forms bound
// below.
constexpr int kOldest = 11040;

// cuGetProcAddress_v2, of CUDA 12.0.
using GetProcAddress = Result(
    const char* name,
    void** function,
    int version,
    uint64_t flags,
    int* status);
// cuGetProcAddress, of CUDA 11.3.
using OldGetProcAddress =
    Result(const char* name, void** function, int version, uint64_t flags);

std::string libraryName() {
  const char* const other = std::getenv(kLibraryVariable);
  return other != nullptr && *other != '\0' ? other : "libcuda.so.1";
}

std::string versionText(int version) {
  return std::to_string(version / 1000) + "." +
      std::to_string(version % 1000 / 10);
}

[[noreturn]] void unavailable(const std::string& why) {
  throw Error(ErrorCode::kUnavailable, why);
}

// The driver's library, never closed: libcuda has threads and handlers of its
// own.
class Library {
 public:
  Library() : name_(libraryName()) {
    library_ = dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      unavailable(
          "the CUDA driver can't be loaded: " + std::string(dlerror()) +
          "; install the NVIDIA driver on this host, or start the container "
          "with the driver");
    }
    find_ = reinterpret_cast<GetProcAddress*>(
        dlsym(library_, "cuGetProcAddress_v2"));
    findOld_ = reinterpret_cast<OldGetProcAddress*>(
        dlsym(library_, "cuGetProcAddress"));
    if (find_ == nullptr && findOld_ == nullptr) {
      tooOld("cuGetProcAddress");
    }
  }

  void* find(const char* function, int version) const {
    void* found = nullptr;
    int status = 0;
    const auto result = find_ != nullptr
        ? find_(function, &found, version, 0, &status)
        : findOld_(function, &found, version, 0);
    return result == Result::kSuccess ? found : nullptr;
  }

  [[noreturn]] void tooOld(const std::string& lacks) const {
    unavailable(
        name_ + " has no " + lacks + ": CUDA " + versionText(kOldest) +
        " is the oldest version that dlslime works with; update the NVIDIA "
        "driver");
  }

 private:
  const std::string name_;
  void* library_ = nullptr;
  GetProcAddress* find_ = nullptr;
  OldGetProcAddress* findOld_ = nullptr;
};

// Binds the form of a function brought by CUDA `version`, or null if the driver
// has none.
template <typename Function>
void bindIfThere(
    const Library& library,
    const char* name,
    int version,
    Function& function) {
  function = reinterpret_cast<Function>(library.find(name, version));
}

template <typename Function>
void bind(
    const Library& library,
    const char* name,
    int version,
    Function& function) {
  bindIfThere(library, name, version, function);
  if (function == nullptr) {
    library.tooOld(name);
  }
}

// Binds the functions for allocating bytes and addresses separately
// (cuMemCreate, cuMemMap).
void bindVirtualMemory(const Library& library, Driver& driver) {
  bind(library, "cuMemGetAddressRange", 3020, driver.addressRange);
  bind(library, "cuMemRetainAllocationHandle", 11000, driver.retainHandle);
  bind(library, "cuMemRelease", 10020, driver.releaseHandle);
  bind(library, "cuMemExportToShareableHandle", 10020, driver.exportHandle);
  bind(library, "cuMemImportFromShareableHandle", 10020, driver.importHandle);
  bind(library, "cuMemAddressReserve", 10020, driver.reserveAddresses);
  bind(library, "cuMemAddressFree", 10020, driver.freeAddresses);
  bind(library, "cuMemMap", 10020, driver.map);
  bind(library, "cuMemUnmap", 10020, driver.unmap);
  bind(library, "cuMemSetAccess", 10020, driver.setAccess);
}

void bindAll(const Library& library, Driver& driver) {
  bind(library, "cuInit", 2000, driver.init);
  bind(library, "cuDriverGetVersion", 2020, driver.driverGetVersion);
  bind(library, "cuGetErrorName", 6000, driver.getErrorName);
  bind(library, "cuGetErrorString", 6000, driver.getErrorString);
  bind(library, "cuDeviceGetCount", 2000, driver.deviceGetCount);
  bind(library, "cuDeviceGet", 2000, driver.deviceGet);
  bind(library, "cuDeviceGetName", 2000, driver.deviceGetName);
  bind(library, "cuDeviceGetUuid", 11040, driver.deviceGetUuid);
  bind(library, "cuDeviceGetAttribute", 2000, driver.deviceGetAttribute);
  bind(library, "cuDeviceCanAccessPeer", 4000, driver.deviceCanAccessPeer);
  bind(
      library,
      "cuDevicePrimaryCtxGetState",
      7000,
      driver.primaryContextGetState);
  bind(library, "cuDevicePrimaryCtxRetain", 7000, driver.primaryContextRetain);
  bind(
      library,
      "cuDevicePrimaryCtxRelease",
      11000,
      driver.primaryContextRelease);
  bind(library, "cuCtxPushCurrent", 4000, driver.contextPush);
  bind(library, "cuCtxPopCurrent", 4000, driver.contextPop);
  bind(library, "cuPointerGetAttributes", 7000, driver.pointerGetAttributes);
  bind(library, "cuMemHostAlloc", 2020, driver.hostAlloc);
  bind(library, "cuMemFreeHost", 2000, driver.hostFree);
  bind(library, "cuMemcpyAsync", 4000, driver.memcpyAsync);
  bind(library, "cuStreamCreateWithPriority", 5050, driver.streamCreate);
  bind(library, "cuStreamDestroy", 4000, driver.streamDestroy);
  bind(library, "cuStreamQuery", 2000, driver.streamQuery);
  bind(library, "cuStreamSynchronize", 2000, driver.streamSynchronize);
  bind(library, "cuStreamWaitEvent", 3020, driver.streamWaitEvent);
  bind(library, "cuStreamIsCapturing", 10000, driver.streamIsCapturing);
  bind(
      library,
      "cuThreadExchangeStreamCaptureMode",
      10010,
      driver.exchangeCaptureMode);
  bindIfThere(library, "cuStreamWriteValue32", 11070, driver.streamWriteValue);
  bindIfThere(library, "cuStreamWaitValue32", 11070, driver.streamWaitValue);
  bind(library, "cuEventCreate", 2000, driver.eventCreate);
  bind(library, "cuEventRecord", 2000, driver.eventRecord);
  bind(library, "cuEventQuery", 2000, driver.eventQuery);
  bind(library, "cuEventDestroy", 4000, driver.eventDestroy);
  bind(library, "cuIpcGetMemHandle", 4010, driver.ipcGetHandle);
  bind(library, "cuIpcOpenMemHandle", 11000, driver.ipcOpenHandle);
  bind(library, "cuIpcCloseMemHandle", 4010, driver.ipcCloseHandle);
  bind(library, "cuModuleLoadData", 2000, driver.moduleLoad);
  bind(library, "cuModuleUnload", 2000, driver.moduleUnload);
  bind(library, "cuModuleGetFunction", 2000, driver.moduleFunction);
  bind(library, "cuLaunchKernel", 4000, driver.launchKernel);
  bindVirtualMemory(library, driver);
  // Takes the form of CUDA 12.8; the form of CUDA 13 does not tell which copy
  // failed.
  bindIfThere(library, "cuMemcpyBatchAsync", 12080, driver.memcpyBatchAsync);
  bindIfThere(
      library, "cuMemGetHandleForAddressRange", 11070, driver.handleForRange);
}

Driver load() {
  const Library library;
  Driver driver{};
  bindAll(library, driver);
  driver.check(driver.init(0), "starting the CUDA driver (cuInit)");
  driver.check(
      driver.driverGetVersion(&driver.version),
      "asking for the CUDA driver's version");
  driver.check(driver.deviceGetCount(&driver.devices), "counting GPUs");
  if (driver.devices == 0) {
    unavailable("the CUDA driver shows no GPU: check CUDA_VISIBLE_DEVICES");
  }
  return driver;
}

} // namespace

Status Driver::status(Result result, const char* what) const {
  if (result == Result::kSuccess) {
    return {};
  }
  const char* name = nullptr;
  const char* text = nullptr;
  getErrorName(result, &name);
  getErrorString(result, &text);
  std::string message = std::string(what) + " failed: ";
  message += name != nullptr
      ? name
      : "CUDA error " + std::to_string(static_cast<int>(result));
  if (text != nullptr) {
    message += " (" + std::string(text) + ")";
  }
  return {ErrorCode::kUnavailable, message};
}

void Driver::check(Result result, const char* what) const {
  if (result != Result::kSuccess) {
    throw Error(status(result, what));
  }
}

bool isLost(Result answer) {
  const int code = static_cast<int>(answer);
  const bool capturing =
      code >= kFirstCaptureError && code <= kLastCaptureError;
  return !capturing && answer != Result::kSuccess &&
      answer != Result::kNotReady && answer != Result::kOutOfMemory;
}

bool driverIsLoaded() {
  void* const library =
      dlopen(libraryName().c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library != nullptr) {
    dlclose(library); // the program's own reference stays
  }
  return library != nullptr;
}

const Driver& loadDriver() {
  // A static is initialised again after an exception: devices may come later.
  static const Driver driver = load();
  return driver;
}

} // namespace dlslime::cuda
