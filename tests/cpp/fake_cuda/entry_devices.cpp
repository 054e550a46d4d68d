// Starting, devices and contexts.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#include "fake_cuda/entry.h"

using namespace dlslime::cuda;

namespace fake_cuda {

namespace {
std::atomic<bool> started{false};
thread_local std::vector<Context> contextStack;

int setting(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}
} // namespace

int deviceCount() {
  static const int count = setting("FAKE_CUDA_DEVICES", 2);
  return count;
}

bool initialized() {
  return started;
}

Context contextOf(int device) {
  static auto* contexts = [] {
    auto* all = new std::deque<ContextImpl>;
    for (int i = 0; i < deviceCount(); ++i) {
      all->emplace_back(i);
    }
    return all;
  }();
  return &contexts->at(static_cast<size_t>(device));
}

int currentDevice() {
  return contextStack.empty() ? -1 : contextStack.back()->device;
}

} // namespace fake_cuda

using namespace fake_cuda;

FAKE_CUDA_EXPORT Result cuInit(unsigned /*flags*/) {
  FAKE_CUDA_ENTER(cuInit);
  delayMicroseconds = setting("FAKE_CUDA_DELAY_US", delayMicroseconds);
  started = deviceCount() > 0;
  return started ? Result::kSuccess : Result::kNoDevice;
}

FAKE_CUDA_EXPORT Result cuDriverGetVersion(int* version) {
  FAKE_CUDA_ENTER(cuDriverGetVersion);
  *version = setting("FAKE_CUDA_VERSION", 13000);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuGetErrorName(Result result, const char** name) {
  thread_local char text[40];
  std::snprintf(
      text, sizeof(text), "FAKE_CUDA_ERROR_%d", static_cast<int>(result));
  *name = text;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuGetErrorString(Result /*result*/, const char** text) {
  *text = "as the fake driver was told";
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuDeviceGetCount(int* count) {
  FAKE_CUDA_ENTER(cuDeviceGetCount);
  *count = deviceCount();
  return initialized() ? Result::kSuccess : Result::kNotInitialized;
}

FAKE_CUDA_EXPORT Result cuDeviceGet(Device* device, int ordinal) {
  FAKE_CUDA_ENTER(cuDeviceGet);
  *device = ordinal;
  return ordinal >= 0 && ordinal < deviceCount() ? Result::kSuccess
                                                 : Result::kInvalidDevice;
}

FAKE_CUDA_EXPORT Result cuDeviceGetName(char* name, int size, Device device) {
  FAKE_CUDA_ENTER(cuDeviceGetName);
  std::snprintf(name, static_cast<size_t>(size), "Fake GPU %d", device);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  FAKE_CUDA_ENTER(cuDeviceGetUuid);
  std::memset(uuid, 0x5a, sizeof(*uuid));
  uuid->bytes[0] = static_cast<unsigned char>(device);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result
cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Device device) {
  FAKE_CUDA_ENTER(cuDeviceGetAttribute);
  switch (attribute) {
    case DeviceAttribute::kPciBusId:
      *value = 0x10 + device;
      break;
    case DeviceAttribute::kPciDeviceId:
    case DeviceAttribute::kPciDomainId:
      *value = 0;
      break;
    case DeviceAttribute::kDmaBufSupported:
      *value = setting("FAKE_CUDA_DMA_BUF", 1);
      break;
    case DeviceAttribute::kGpuDirectRdmaOrdering:
      *value = setting("FAKE_CUDA_RDMA_ORDERING", 100);
      break;
    default:
      *value = 1;
  }
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result
cuDeviceCanAccessPeer(int* can, Device device, Device peer) {
  FAKE_CUDA_ENTER(cuDeviceCanAccessPeer);
  *can = device != peer && setting("FAKE_CUDA_PEERS", 1) != 0 ? 1 : 0;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result
cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active) {
  FAKE_CUDA_ENTER(cuDevicePrimaryCtxGetState);
  *flags = 0;
  *active = contextOf(device)->retained > 0 ? 1 : 0;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result
cuDevicePrimaryCtxRetain(Context* context, Device device) {
  FAKE_CUDA_ENTER(cuDevicePrimaryCtxRetain);
  *context = contextOf(device);
  ++(*context)->retained;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuDevicePrimaryCtxRelease_v2(Device device) {
  FAKE_CUDA_ENTER(cuDevicePrimaryCtxRelease);
  --contextOf(device)->retained;
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuCtxPushCurrent_v2(Context context) {
  FAKE_CUDA_ENTER(cuCtxPushCurrent);
  contextStack.push_back(context);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuCtxSetCurrent(Context context) {
  FAKE_CUDA_ENTER(cuCtxSetCurrent);
  if (!contextStack.empty()) {
    contextStack.pop_back();
  }
  if (context != nullptr) {
    contextStack.push_back(context);
  }
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuCtxPopCurrent_v2(Context* context) {
  FAKE_CUDA_ENTER(cuCtxPopCurrent);
  if (contextStack.empty()) {
    return Result::kInvalidContext;
  }
  *context = contextStack.back();
  contextStack.pop_back();
  return Result::kSuccess;
}
