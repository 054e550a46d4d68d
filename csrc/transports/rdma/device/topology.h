#pragma once

#include <string>
#include <vector>

namespace dlslime::rdma {

// Distance between two places of a machine, with nvidia-smi's name in brackets.
// Smaller is nearer.
enum class Distance : uint8_t {
  kSwitch, // below one PCIe switch, or one port (PIX)
  kSwitches, // several switches, but not the CPU (PXB)
  kHostBridge, // through the CPU's PCIe host bridge (PHB)
  kNode, // between host bridges of a NUMA node, or unknown (NODE)
  kSystem, // between NUMA nodes (SYS)
};
constexpr auto kFarthest = Distance::kSystem;
const char* distanceText(Distance distance);

// Where a device is plugged in.
struct Place {
  // Components of the sysfs path, from the host bridge on: pci0000:16,
  // 0000:16:01.0, ... Empty for a device without PCI, as of soft-RoCE.
  std::vector<std::string> path;
  int node = -1; // NUMA node; -1: the kernel does not tell
};

// Reads PCIe and NUMA topology from the kernel's sysfs.
class Topology {
 public:
  explicit Topology(std::string sysfs) : sysfs_(std::move(sysfs)) {}

  Place ofRdmaDevice(const std::string& name) const; // "mlx5_0"
  Place ofPciDevice(const std::string& address) const; // "0000:18:00.0"
  // Returns the NUMA nodes of the CPUs, or none if the kernel does not tell.
  std::vector<int> nodesOf(const std::vector<int>& cpus) const;

  static Distance between(const Place& one, const Place& other);
  // Returns the distance to the memory of a process running on `nodes`.
  static Distance between(const Place& one, const std::vector<int>& nodes);

 private:
  const std::string sysfs_;
};

// Returns the CPUs allowed for the calling thread.
std::vector<int> allowedCpus();

} // namespace dlslime::rdma
