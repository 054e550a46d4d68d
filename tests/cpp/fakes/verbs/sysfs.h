#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "fakes/verbs/fake_verbs.h"

namespace dlslime::testing {

namespace fs = std::filesystem;

// The files that the kernel would show on a recorded machine.
class Sysfs {
 public:
  explicit Sysfs(const char* machine) {
    std::string name = fs::temp_directory_path() / "sysfs.XXXXXX";
    root_ = mkdtemp(name.data());
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
  ~Sysfs() {
    fs::remove_all(root_);
  }
  Sysfs(const Sysfs&) = delete;
  Sysfs& operator=(const Sysfs&) = delete;

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  const fs::path& root() const {
    return root_;
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
      fs::create_directories(root_ / own);
      link(own + "/device", path);
      link("class/infiniband/" + nic, own);
      FakeDevice device;
      device.name = nic;
      nics_.push_back(device);
    }
  }
  void link(const std::string& from, const std::string& to) {
    fs::create_directories((root_ / from).parent_path());
    fs::create_symlink(
        fs::relative(root_ / to, (root_ / from).parent_path()), root_ / from);
  }

  fs::path root_;
  std::string online_; // nodes, as listed by the kernel
  std::vector<FakeDevice> nics_;
};

} // namespace dlslime::testing
