#pragma once

#include <c10/core/Device.h>

#include "interface/accelerator.h"

namespace dlslime {

// The calling thread's current stream on a GPU; without an index, on its
// current one. Throws c10::Error: torch has no such GPU. By torch's interface
// for all kinds of devices: nothing here is linked with CUDA.
DeviceStream currentStream(c10::Device device);

} // namespace dlslime
