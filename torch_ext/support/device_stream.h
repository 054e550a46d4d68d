#pragma once

#include <c10/core/Device.h>

#include "interface/accelerator.h"

namespace dlslime {

// Returns the calling thread's current stream on a GPU, or on the current GPU
// if `device` has no index. Throws c10::Error if torch has no such GPU. Uses
// torch's interface for all kinds of devices, so that the extension is not
// linked with CUDA.
DeviceStream currentStream(c10::Device device);

} // namespace dlslime
