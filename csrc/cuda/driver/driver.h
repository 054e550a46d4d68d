#pragma once

#include <string>

#include "base/status.h"
#include "cuda/driver/cuda_api.h"

namespace dlslime::cuda {

// The functions of libcuda in use, opened at run time so that one build runs
// with and without libcuda. driver.cpp names the version of each function.
struct Driver {
  Result (*init)(unsigned flags);
  Result (*driverGetVersion)(int* version);
  Result (*getErrorName)(Result, const char**);
  Result (*getErrorString)(Result, const char**);
  Result (*deviceGetCount)(int* count);
  Result (*deviceGet)(Device*, int ordinal);
  Result (*deviceGetName)(char* name, int size, Device);
  Result (*deviceGetUuid)(Uuid*, Device);
  Result (*deviceGetAttribute)(int* value, DeviceAttribute, Device);
  Result (*deviceCanAccessPeer)(int* can, Device, Device peer);
  Result (*primaryContextGetState)(Device, unsigned* flags, int* active);
  Result (*primaryContextRetain)(Context*, Device);
  Result (*primaryContextRelease)(Device);
  Result (*contextPush)(Context);
  Result (*contextPop)(Context*);
  Result (*pointerGetAttributes)(
      unsigned count,
      PointerAttribute*,
      void** values,
      DevicePointer);
  Result (*hostAlloc)(void** memory, size_t size, unsigned flags);
  Result (*hostFree)(void* memory);
  Result (
      *memcpyAsync)(DevicePointer to, DevicePointer from, size_t size, Stream);
  Result (*streamCreate)(Stream*, unsigned flags, int priority);
  Result (*streamDestroy)(Stream);
  Result (*streamQuery)(Stream);
  Result (*streamSynchronize)(Stream);
  Result (*streamWaitEvent)(Stream, Event, unsigned flags);
  Result (*streamIsCapturing)(Stream, CaptureStatus*);
  Result (*exchangeCaptureMode)(CaptureMode*); // of the calling thread
  Result (*eventCreate)(Event*, unsigned flags);
  Result (*eventRecord)(Event, Stream);
  Result (*eventQuery)(Event);
  Result (*eventDestroy)(Event);
  Result (*ipcGetHandle)(IpcMemoryHandle*, DevicePointer);
  Result (*ipcOpenHandle)(DevicePointer*, IpcMemoryHandle, unsigned flags);
  Result (*ipcCloseHandle)(DevicePointer);
  Result (*moduleLoad)(Module*, const void* image);
  Result (*moduleUnload)(Module);
  Result (*moduleFunction)(Function*, Module, const char* name);
  Result (*launchKernel)(
      Function,
      unsigned blocksX,
      unsigned blocksY,
      unsigned blocksZ,
      unsigned threadsX,
      unsigned threadsY,
      unsigned threadsZ,
      unsigned sharedBytes,
      Stream,
      void** parameters,
      void** extra);
  Result (*addressRange)(DevicePointer* base, size_t* size, DevicePointer);
  Result (*retainHandle)(MemoryHandle*, void* pointer);
  Result (*releaseHandle)(MemoryHandle);
  Result (*exportHandle)(
      void* shareable,
      MemoryHandle,
      int type,
      unsigned long long flags);
  Result (*importHandle)(MemoryHandle*, void* shareable, int type);
  Result (*reserveAddresses)(
      DevicePointer*,
      size_t size,
      size_t alignment,
      DevicePointer wanted,
      unsigned long long flags);
  Result (*freeAddresses)(DevicePointer, size_t size);
  Result (*map)(
      DevicePointer,
      size_t size,
      size_t offset,
      MemoryHandle,
      unsigned long long flags);
  Result (*unmap)(DevicePointer, size_t size);
  Result (*setAccess)(
      DevicePointer,
      size_t size,
      const AccessDescription*,
      size_t count);
  // The functions below are null where the driver is too old.
  Result (*memcpyBatchAsync)(
      DevicePointer* to,
      DevicePointer* from,
      size_t* sizes,
      size_t count,
      CopyAttributes*,
      size_t* firstOfAttributes,
      size_t attributes,
      size_t* failed,
      Stream);
  Result (
      *streamWriteValue)(Stream, DevicePointer, uint32_t value, unsigned flags);
  Result (
      *streamWaitValue)(Stream, DevicePointer, uint32_t value, unsigned flags);
  Result (*handleForRange)(
      void* handle,
      DevicePointer,
      size_t size,
      int type,
      unsigned long long flags);

  int version; // 12040: CUDA 12.4
  int devices; // at least 1

  // Returns an error with the text "`what` failed: CUDA_ERROR_... (the driver's
  // text)"; ok for kSuccess.
  Status status(Result result, const char* what) const;
  // Throws Error{kUnavailable} with the text of status() unless `result` is
  // kSuccess.
  void check(Result result, const char* what) const;
};

// Returns whether a stream answering so has failed for good. A capture in
// progress, or want of memory for the answer, says nothing about the stream.
bool isLost(Result answer);

// Returns the process's libcuda, loaded and initialised once, without making a
// context. Throws Error{kUnavailable} naming the missing part.
const Driver& loadDriver();
// Returns whether the program, or a library in it, has loaded libcuda: else no
// address is of GPU memory.
bool driverIsLoaded();

} // namespace dlslime::cuda
