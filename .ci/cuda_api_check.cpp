// Compares csrc/cuda's own declarations of the driver with NVIDIA's headers,
// which nothing else here needs. Compiled, never run (.ci/lint).
#include <cuda.h>
#include <cudaTypedefs.h>

#include "cuda/driver/driver.h"
#include "same_form.h"

namespace ours = dlslime::cuda;

#define SAME_FORM(field, form) \
  static_assert(               \
      SameForm<decltype(ours::Driver::field), PFN_##form>::value, #form)
#define SAME_VALUE(ours_, theirs) \
  static_assert(static_cast<int>(ours::ours_) == static_cast<int>(theirs))
#define SAME_SIZE(ours_, theirs)               \
  static_assert(                               \
      sizeof(ours::ours_) == sizeof(theirs) && \
      alignof(ours::ours_) == alignof(theirs))

// The suffix is the version that driver.cpp asks for.
SAME_FORM(init, cuInit_v2000);
SAME_FORM(driverGetVersion, cuDriverGetVersion_v2020);
SAME_FORM(getErrorName, cuGetErrorName_v6000);
SAME_FORM(getErrorString, cuGetErrorString_v6000);
SAME_FORM(deviceGetCount, cuDeviceGetCount_v2000);
SAME_FORM(deviceGet, cuDeviceGet_v2000);
SAME_FORM(deviceGetName, cuDeviceGetName_v2000);
SAME_FORM(deviceGetUuid, cuDeviceGetUuid_v11040);
SAME_FORM(deviceGetAttribute, cuDeviceGetAttribute_v2000);
SAME_FORM(deviceCanAccessPeer, cuDeviceCanAccessPeer_v4000);
SAME_FORM(primaryContextGetState, cuDevicePrimaryCtxGetState_v7000);
SAME_FORM(primaryContextRetain, cuDevicePrimaryCtxRetain_v7000);
SAME_FORM(primaryContextRelease, cuDevicePrimaryCtxRelease_v11000);
SAME_FORM(contextPush, cuCtxPushCurrent_v4000);
SAME_FORM(contextPop, cuCtxPopCurrent_v4000);
SAME_FORM(pointerGetAttributes, cuPointerGetAttributes_v7000);
SAME_FORM(hostAlloc, cuMemHostAlloc_v2020);
SAME_FORM(hostFree, cuMemFreeHost_v2000);
SAME_FORM(memcpyAsync, cuMemcpyAsync_v4000);
SAME_FORM(memcpyBatchAsync, cuMemcpyBatchAsync_v12080);
SAME_FORM(streamCreate, cuStreamCreateWithPriority_v5050);
SAME_FORM(streamDestroy, cuStreamDestroy_v4000);
SAME_FORM(streamQuery, cuStreamQuery_v2000);
SAME_FORM(streamSynchronize, cuStreamSynchronize_v2000);
SAME_FORM(streamWaitEvent, cuStreamWaitEvent_v3020);
SAME_FORM(streamIsCapturing, cuStreamIsCapturing_v10000);
SAME_FORM(exchangeCaptureMode, cuThreadExchangeStreamCaptureMode_v10010);
SAME_FORM(streamWriteValue, cuStreamWriteValue32_v11070);
SAME_FORM(streamWaitValue, cuStreamWaitValue32_v11070);
SAME_FORM(eventCreate, cuEventCreate_v2000);
SAME_FORM(eventRecord, cuEventRecord_v2000);
SAME_FORM(eventQuery, cuEventQuery_v2000);
SAME_FORM(eventDestroy, cuEventDestroy_v4000);
SAME_FORM(ipcGetHandle, cuIpcGetMemHandle_v4010);
SAME_FORM(ipcOpenHandle, cuIpcOpenMemHandle_v11000);
SAME_FORM(ipcCloseHandle, cuIpcCloseMemHandle_v4010);
SAME_FORM(handleForRange, cuMemGetHandleForAddressRange_v11070);

SAME_FORM(moduleLoad, cuModuleLoadData_v2000);
SAME_FORM(moduleUnload, cuModuleUnload_v2000);
SAME_FORM(moduleFunction, cuModuleGetFunction_v2000);
SAME_FORM(launchKernel, cuLaunchKernel_v4000);
SAME_FORM(addressRange, cuMemGetAddressRange_v3020);
SAME_FORM(retainHandle, cuMemRetainAllocationHandle_v11000);
SAME_FORM(releaseHandle, cuMemRelease_v10020);
SAME_FORM(exportHandle, cuMemExportToShareableHandle_v10020);
SAME_FORM(importHandle, cuMemImportFromShareableHandle_v10020);
SAME_FORM(reserveAddresses, cuMemAddressReserve_v10020);
SAME_FORM(freeAddresses, cuMemAddressFree_v10020);
SAME_FORM(map, cuMemMap_v10020);
SAME_FORM(unmap, cuMemUnmap_v10020);
SAME_FORM(setAccess, cuMemSetAccess_v10020);

SAME_SIZE(DevicePointer, CUdeviceptr);
SAME_SIZE(Uuid, CUuuid);
SAME_SIZE(IpcMemoryHandle, CUipcMemHandle);
SAME_SIZE(MemoryLocation, CUmemLocation);
SAME_SIZE(IpcMemoryHandle, CUmemFabricHandle);
SAME_VALUE(kFabricHandle, CU_MEM_HANDLE_TYPE_FABRIC);
SAME_VALUE(
    PointerAttribute::kAllowedHandleTypes,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
SAME_SIZE(MemoryHandle, CUmemGenericAllocationHandle);
SAME_SIZE(AccessDescription, CUmemAccessDesc);
SAME_VALUE(kDeviceLocation, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(kReadAndWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(kDescriptorHandle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_SIZE(CopyAttributes, CUmemcpyAttributes);
SAME_VALUE(
    DeviceAttribute::kGpuDirectRdmaOrdering,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
SAME_VALUE(kInStreamOrder, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);

SAME_VALUE(Result::kSuccess, CUDA_SUCCESS);
SAME_VALUE(Result::kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(Result::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(Result::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(Result::kDeinitialized, CUDA_ERROR_DEINITIALIZED);
SAME_VALUE(Result::kNoDevice, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(Result::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME_VALUE(Result::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME_VALUE(Result::kMapFailed, CUDA_ERROR_MAP_FAILED);
SAME_VALUE(Result::kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME_VALUE(Result::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME_VALUE(Result::kNotFound, CUDA_ERROR_NOT_FOUND);
SAME_VALUE(Result::kNotReady, CUDA_ERROR_NOT_READY);
SAME_VALUE(Result::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_VALUE(Result::kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME_VALUE(Result::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
SAME_VALUE(Result::kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
SAME_VALUE(Result::kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(
    Result::kStreamCaptureUnsupported,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME_VALUE(Result::kUnknown, CUDA_ERROR_UNKNOWN);

SAME_VALUE(
    DeviceAttribute::kProcessors,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(DeviceAttribute::kPciBusId, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME_VALUE(DeviceAttribute::kPciDeviceId, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME_VALUE(DeviceAttribute::kPciDomainId, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME_VALUE(
    DeviceAttribute::kGpuDirectRdmaSupported,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
SAME_VALUE(
    DeviceAttribute::kDmaBufSupported,
    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);

SAME_VALUE(PointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_VALUE(PointerAttribute::kBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME_VALUE(
    PointerAttribute::kDeviceOrdinal,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_VALUE(
    PointerAttribute::kIsLegacyIpcCapable,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME_VALUE(
    PointerAttribute::kRangeStart,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME_VALUE(PointerAttribute::kRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME_VALUE(
    PointerAttribute::kIsGpuDirectRdmaCapable,
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE);

SAME_VALUE(kHostMemory, CU_MEMORYTYPE_HOST);
SAME_VALUE(kDeviceMemory, CU_MEMORYTYPE_DEVICE);
SAME_VALUE(CaptureStatus::kNone, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(CaptureMode::kRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME_VALUE(kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME_VALUE(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
SAME_VALUE(kWaitValueAtLeast, CU_STREAM_WAIT_VALUE_GEQ);
SAME_VALUE(kWriteValueDefault, CU_STREAM_WRITE_VALUE_DEFAULT);
SAME_VALUE(kDmaBufHandle, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
