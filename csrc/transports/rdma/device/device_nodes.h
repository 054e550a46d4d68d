#pragma once

#include <string>

namespace dlslime::rdma {

// Returns a text about the RDMA devices that the kernel shows below `sysfs` and
// that this process can't open in /dev/infiniband, with the remedy; or an empty
// text. Containers see all devices of the host in sysfs, and only the nodes
// given to the container in /dev.
std::string missingNodesText(const std::string& sysfs);

} // namespace dlslime::rdma
