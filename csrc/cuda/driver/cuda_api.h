#pragma once

// The part of the CUDA driver's binary interface in use, declared here so that
// the build needs no CUDA toolkit. Values and layouts are those of cuda.h and
// do not change: the driver keeps old versions of functions for ever
// (cuda/driver/driver.cpp names the versions in use).

#include <cstddef>
#include <cstdint>

namespace dlslime::cuda {

using DevicePointer = uint64_t; // CUdeviceptr
using Device = int; // CUdevice: an ordinal
using Context = struct ContextImpl*; // CUcontext
using Stream = struct StreamImpl*; // CUstream
using Event = struct EventImpl*; // CUevent
using Module = struct ModuleImpl*; // CUmodule
using Function = struct FunctionImpl*; // CUfunction
using MemoryHandle = unsigned long long; // CUmemGenericAllocationHandle

enum class Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kMapFailed = 205,
  kPeerAccessUnsupported = 217,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kContextIsDestroyed = 709,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kStreamCaptureUnsupported = 900,
  kUnknown = 999,
};

// The errors from CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to
// CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD are about a graph being captured by
// some thread.
constexpr int kFirstCaptureError = 900;
constexpr int kLastCaptureError = 908;

struct Uuid {
  unsigned char bytes[16];
};

enum class DeviceAttribute : int { // CU_DEVICE_ATTRIBUTE_*
  kProcessors = 16, // MULTIPROCESSOR_COUNT
  kPciBusId = 33,
  kPciDeviceId = 34,
  kPciDomainId = 50,
  kGpuDirectRdmaSupported = 116,
  kGpuDirectRdmaOrdering = 118,
  kDmaBufSupported = 124,
};

enum class PointerAttribute : int { // CU_POINTER_ATTRIBUTE_*
  kMemoryType = 2, // unsigned int: MemoryType
  kBufferId = 7, // unsigned long long: differs for each allocation
  kDeviceOrdinal = 9, // int
  kIsLegacyIpcCapable = 10, // unsigned int
  kRangeStart = 11, // DevicePointer
  kRangeSize = 12, // size_t
  kAllowedHandleTypes = 14, // unsigned int
  kIsGpuDirectRdmaCapable = 15, // unsigned int
};

enum MemoryType : unsigned { kHostMemory = 1, kDeviceMemory = 2 };

struct IpcMemoryHandle { // CUipcMemHandle, CUmemFabricHandle
  char bytes[64];
};

struct MemoryLocation { // CUmemLocation
  int type;
  int id;
};
constexpr int kDeviceLocation = 1; // CU_MEM_LOCATION_TYPE_DEVICE
struct AccessDescription { // CUmemAccessDesc
  MemoryLocation location;
  int flags;
};
constexpr int kReadAndWrite = 3; // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
constexpr int kDescriptorHandle = 1; // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr int kFabricHandle = 8; // CU_MEM_HANDLE_TYPE_FABRIC

struct CopyAttributes { // CUmemcpyAttributes
  int sourceOrder; // kInStreamOrder
  MemoryLocation sourceHint, destinationHint; // for managed memory only
  unsigned flags;
};
constexpr int kInStreamOrder = 1; // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM

enum class CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

// The constants below are flags of single functions.
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kIpcLazyPeerAccess = 1;
constexpr unsigned kHostAllocPortable = 1;
constexpr unsigned kWaitValueAtLeast = 0; // CU_STREAM_WAIT_VALUE_GEQ
constexpr unsigned kWriteValueDefault = 0; // after all memory operations
constexpr int kDmaBufHandle = 1; // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

} // namespace dlslime::cuda
