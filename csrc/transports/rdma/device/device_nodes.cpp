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

// Returns the device of a node; empty for the version of the interface, which
// stands among the nodes.
std::string deviceOf(const std::string& folder, const std::string& node) {
  std::string device;
  std::ifstream(folder + "/" + node + "/ibdev") >> device;
  return device;
}

std::string pathOf(const std::string& node) {
  return "/dev/infiniband/" + node;
}

std::string
refusalText(const std::string& device, const std::string& path, int error) {
  return device + " but " + path + " can't be opened (" + errnoText(error) +
      ")";
}

} // namespace

std::string missingNodesText(const std::string& sysfs) {
  const auto folder = sysfs + "/class/infiniband_verbs";
  std::string text;
  bool missing = false;
  for (const auto& node : namesIn(folder)) {
    const auto device = deviceOf(folder, node);
    const auto path = pathOf(node);
    if (device.empty() || access(path.c_str(), R_OK | W_OK) == 0) {
      continue;
    }
    const int error = errno;
    missing |= error == ENOENT;
    text += text.empty() ? "the kernel shows " : ", ";
    text += refusalText(device, path, error);
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
