#include "torch_ext/support/device_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace dlslime {

DeviceStream currentStream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto which = device.has_index() ? device : guard.getDevice();
  return {which.index(), guard.getStream(which).native_handle()};
}

} // namespace dlslime
