#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include "cuda/driver/cuda_api.h"

namespace fake_gpu {

namespace cuda = dlslime::cuda;

// The device of the calling thread, and its current stream on each.
c10::DeviceIndex& currentDevice();
cuda::Stream& currentStream(c10::DeviceIndex device);
cuda::Stream newStream(c10::DeviceIndex device);
bool idle(c10::DeviceIndex device, cuda::Stream stream);
void synchronize(c10::DeviceIndex device, cuda::Stream stream);
// Made at its first use.
void record(void** event, c10::DeviceIndex device, cuda::Stream stream);
void block(void* event, c10::DeviceIndex device, cuda::Stream stream);
bool reached(void* event);
void destroy(void* event) noexcept;
// By the device's current stream; returns before it is made.
void copyAsync(
    c10::DeviceIndex device,
    void* to,
    const void* from,
    size_t size);

// Where the processor finds memory of a device.
void* peek(void* data);
// Runs `function` in the turn of the device's current stream.
void launchHost(c10::DeviceIndex device, void (*function)(void*), void* data);

// Hands out parts of large allocations, as torch's caching allocator does.
c10::Allocator& allocator();
// Frees the allocations of which no part is in use.
void emptyCache();

} // namespace fake_gpu
