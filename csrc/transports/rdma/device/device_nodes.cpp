#include "transports/rdma/device/device_nodes.h"

#include <dirent.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <set>

#include "base/status.h"

namespace dlslime::rdma {

namespace {

// Returns the names in a folder, sorted; none if there is no such folder.
std::set<std::string> namesIn(const std::string& folder) {
  std::set<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(
      opendir(folder.c_str()), &closedir);
  while (const auto* entry = open ? readdir(open.get()) : nullptr) {
    if (entry->d_name[0] != '.') {
      names.insert(entry->d_name);
    }
  }
  return names;
}

} // namespace

std::string missingNodesText(const std::string& sysfs) {
  const auto folder = sysfs + "/class/infiniband_verbs";
  std::string text;
  bool missing = false;
  for (const auto& node : namesIn(folder)) {
    std::string device;
    if (!(std::ifstream(folder + "/" + node + "/ibdev") >> device)) {
      continue; // the version of the interface, and no device
    }
    const auto path = "/dev/infiniband/" + node;
    if (access(path.c_str(), R_OK | W_OK) != 0) {
      missing |= errno == ENOENT;
      text += (text.empty() ? "the kernel shows " : ", ") + device + " but " +
          path + " can't be opened (" + errnoText(errno) + ")";
    }
  }
  if (text.empty()) {
    return text;
  }
  return text +
      (missing ? "; give the container the device: docker run "
                 "--device=/dev/infiniband, in Kubernetes a resource of the "
                 "RDMA device plugin"
               : "; let this user read and write the node");
}

} // namespace dlslime::rdma
