// Finding functions by name and version, as programs have to.
#include <cstdlib>
#include <cstring>

#include "cuda/driver/cuda_api.h"

using dlslime::cuda::Result;

// Declared for the addresses only.
extern "C" {
void cuInit();
void cuDriverGetVersion();
void cuGetErrorName();
void cuGetErrorString();
void cuDeviceGetCount();
void cuDeviceGet();
void cuDeviceGetName();
void cuDeviceGetUuid_v2();
void cuDeviceGetAttribute();
void cuDeviceCanAccessPeer();
void cuDevicePrimaryCtxGetState();
void cuDevicePrimaryCtxRetain();
void cuDevicePrimaryCtxRelease_v2();
void cuCtxPushCurrent_v2();
void cuCtxPopCurrent_v2();
void cuMemAlloc_v2();
void cuMemFree_v2();
void cuMemHostAlloc();
void cuMemFreeHost();
void cuPointerGetAttributes();
void cuMemcpyAsync();
void cuMemcpyBatchAsync();
void cuIpcGetMemHandle();
void cuIpcOpenMemHandle_v2();
void cuIpcCloseMemHandle();
void cuMemGetHandleForAddressRange();
void cuMemGetAddressRange_v2();
void cuModuleLoadData();
void cuModuleUnload();
void cuModuleGetFunction();
void cuLaunchKernel();
void cuMemRelease();
void cuMemAddressReserve();
void cuMemAddressFree();
void cuMemMap();
void cuMemUnmap();
void cuMemSetAccess();
void cuMemRetainAllocationHandle();
void cuMemExportToShareableHandle();
void cuMemImportFromShareableHandle();
void cuStreamCreateWithPriority();
void cuStreamDestroy_v2();
void cuStreamQuery();
void cuStreamSynchronize();
void cuStreamIsCapturing();
void cuThreadExchangeStreamCaptureMode();
void cuEventCreate();
void cuEventDestroy_v2();
void cuEventRecord();
void cuEventQuery();
void cuStreamWaitEvent();
void cuStreamWriteValue32_v2();
void cuStreamWaitValue32_v2();
}

namespace {

struct Entry {
  const char* name;
  int version; // version of CUDA that brought the form
  void* function;
};
const Entry kEntries[] = {
    {"cuInit", 2000, reinterpret_cast<void*>(&cuInit)},
    {"cuDriverGetVersion", 2020, reinterpret_cast<void*>(&cuDriverGetVersion)},
    {"cuGetErrorName", 6000, reinterpret_cast<void*>(&cuGetErrorName)},
    {"cuGetErrorString", 6000, reinterpret_cast<void*>(&cuGetErrorString)},
    {"cuDeviceGetCount", 2000, reinterpret_cast<void*>(&cuDeviceGetCount)},
    {"cuDeviceGet", 2000, reinterpret_cast<void*>(&cuDeviceGet)},
    {"cuDeviceGetName", 2000, reinterpret_cast<void*>(&cuDeviceGetName)},
    {"cuDeviceGetUuid", 11040, reinterpret_cast<void*>(&cuDeviceGetUuid_v2)},
    {"cuDeviceGetAttribute",
     2000,
     reinterpret_cast<void*>(&cuDeviceGetAttribute)},
    {"cuDeviceCanAccessPeer",
     4000,
     reinterpret_cast<void*>(&cuDeviceCanAccessPeer)},
    {"cuDevicePrimaryCtxGetState",
     7000,
     reinterpret_cast<void*>(&cuDevicePrimaryCtxGetState)},
    {"cuDevicePrimaryCtxRetain",
     7000,
     reinterpret_cast<void*>(&cuDevicePrimaryCtxRetain)},
    {"cuDevicePrimaryCtxRelease",
     11000,
     reinterpret_cast<void*>(&cuDevicePrimaryCtxRelease_v2)},
    {"cuCtxPushCurrent", 4000, reinterpret_cast<void*>(&cuCtxPushCurrent_v2)},
    {"cuCtxPopCurrent", 4000, reinterpret_cast<void*>(&cuCtxPopCurrent_v2)},
    {"cuMemAlloc", 3020, reinterpret_cast<void*>(&cuMemAlloc_v2)},
    {"cuMemFree", 3020, reinterpret_cast<void*>(&cuMemFree_v2)},
    {"cuMemHostAlloc", 2020, reinterpret_cast<void*>(&cuMemHostAlloc)},
    {"cuMemFreeHost", 2000, reinterpret_cast<void*>(&cuMemFreeHost)},
    {"cuPointerGetAttributes",
     7000,
     reinterpret_cast<void*>(&cuPointerGetAttributes)},
    {"cuMemcpyAsync", 4000, reinterpret_cast<void*>(&cuMemcpyAsync)},
    {"cuMemcpyBatchAsync", 12080, reinterpret_cast<void*>(&cuMemcpyBatchAsync)},
    {"cuIpcGetMemHandle", 4010, reinterpret_cast<void*>(&cuIpcGetMemHandle)},
    {"cuIpcOpenMemHandle",
     11000,
     reinterpret_cast<void*>(&cuIpcOpenMemHandle_v2)},
    {"cuIpcCloseMemHandle",
     4010,
     reinterpret_cast<void*>(&cuIpcCloseMemHandle)},
    {"cuMemGetHandleForAddressRange",
     11070,
     reinterpret_cast<void*>(&cuMemGetHandleForAddressRange)},
    {"cuModuleLoadData", 2000, reinterpret_cast<void*>(&cuModuleLoadData)},
    {"cuModuleUnload", 2000, reinterpret_cast<void*>(&cuModuleUnload)},
    {"cuModuleGetFunction",
     2000,
     reinterpret_cast<void*>(&cuModuleGetFunction)},
    {"cuLaunchKernel", 4000, reinterpret_cast<void*>(&cuLaunchKernel)},
    {"cuMemGetAddressRange",
     3020,
     reinterpret_cast<void*>(&cuMemGetAddressRange_v2)},
    {"cuMemRelease", 10020, reinterpret_cast<void*>(&cuMemRelease)},
    {"cuMemAddressReserve",
     10020,
     reinterpret_cast<void*>(&cuMemAddressReserve)},
    {"cuMemAddressFree", 10020, reinterpret_cast<void*>(&cuMemAddressFree)},
    {"cuMemMap", 10020, reinterpret_cast<void*>(&cuMemMap)},
    {"cuMemUnmap", 10020, reinterpret_cast<void*>(&cuMemUnmap)},
    {"cuMemSetAccess", 10020, reinterpret_cast<void*>(&cuMemSetAccess)},
    {"cuMemExportToShareableHandle",
     10020,
     reinterpret_cast<void*>(&cuMemExportToShareableHandle)},
    {"cuMemImportFromShareableHandle",
     10020,
     reinterpret_cast<void*>(&cuMemImportFromShareableHandle)},
    {"cuMemRetainAllocationHandle",
     11000,
     reinterpret_cast<void*>(&cuMemRetainAllocationHandle)},
    {"cuStreamCreateWithPriority",
     5050,
     reinterpret_cast<void*>(&cuStreamCreateWithPriority)},
    {"cuStreamDestroy", 4000, reinterpret_cast<void*>(&cuStreamDestroy_v2)},
    {"cuStreamQuery", 2000, reinterpret_cast<void*>(&cuStreamQuery)},
    {"cuStreamSynchronize",
     2000,
     reinterpret_cast<void*>(&cuStreamSynchronize)},
    {"cuStreamIsCapturing",
     10000,
     reinterpret_cast<void*>(&cuStreamIsCapturing)},
    {"cuThreadExchangeStreamCaptureMode",
     10010,
     reinterpret_cast<void*>(&cuThreadExchangeStreamCaptureMode)},
    {"cuEventCreate", 2000, reinterpret_cast<void*>(&cuEventCreate)},
    {"cuEventDestroy", 4000, reinterpret_cast<void*>(&cuEventDestroy_v2)},
    {"cuEventRecord", 2000, reinterpret_cast<void*>(&cuEventRecord)},
    {"cuEventQuery", 2000, reinterpret_cast<void*>(&cuEventQuery)},
    {"cuStreamWaitEvent", 3020, reinterpret_cast<void*>(&cuStreamWaitEvent)},
    {"cuStreamWriteValue32",
     11070,
     reinterpret_cast<void*>(&cuStreamWriteValue32_v2)},
    {"cuStreamWaitValue32",
     11070,
     reinterpret_cast<void*>(&cuStreamWaitValue32_v2)},
};

} // namespace

// Finds exact versions only, and nothing newer than FAKE_CUDA_VERSION.
extern "C" __attribute__((visibility("default"))) Result cuGetProcAddress_v2(
    const char* name,
    void** function,
    int version,
    uint64_t /*flags*/,
    int* /*status*/) {
  const char* const pretended = std::getenv("FAKE_CUDA_VERSION");
  const int have = pretended != nullptr ? std::atoi(pretended) : 13000;
  *function = nullptr;
  for (const auto& entry : kEntries) {
    if (std::strcmp(entry.name, name) == 0 && entry.version == version &&
        version <= have) {
      *function = entry.function;
      return Result::kSuccess;
    }
  }
  return Result::kNotFound;
}
