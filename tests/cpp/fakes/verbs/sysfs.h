#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "fakes/made_up_folder.h"
#include "fakes/verbs/fake_verbs.h"

namespace dlslime::testing {

// The files that the kernel would show on a recorded machine.
class Sysfs : public MadeUpFolder {
 public:
  explicit Sysfs(const char* machine) {
    std::istringstream lines(machine);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string path, node, more;
      words >> path >> node >> more;
      if (path == "node") {
        put("devices/system/node/node" + node + "/cpulist", more);
        online_ += (online_.empty() ? "" : ",") + node;
        put("devices/system/node/online", online_);
      } else if (!path.empty()) {
        addDevice("devices/" + path, node, more);
      }
    }
  }
  const std::vector<FakeDevice>& nics() const {
    return nics_;
  }

 private:
  void addDevice(
      const std::string& path,
      const std::string& node,
      const std::string& nic) {
    put(path + "/numa_node", node);
    link("bus/pci/devices/" + fs::path(path).filename().string(), path);
    if (!nic.empty()) {
      const auto own = path + "/infiniband/" + nic;
      fs::create_directories(root() / own);
      link(own + "/device", path);
      link("class/infiniband/" + nic, own);
      FakeDevice device;
      device.name = nic;
      nics_.push_back(device);
    }
  }

  std::string online_; // nodes, as listed by the kernel
  std::vector<FakeDevice> nics_;
};

} // namespace dlslime::testing
