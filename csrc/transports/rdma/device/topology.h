#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dlslime::rdma {

// How far apart two places of a machine are; in brackets what nvidia-smi calls
// it. Smaller is nearer.
enum class Distance : uint8_t {
  kSwitch, // below one PCIe switch, or one port (PIX)
  kSwitches, // several switches, but not the CPU (PXB)
  kHostBridge, // through the CPU's PCIe host bridge (PHB)
  kNode, // between host bridges of one NUMA node (NODE); or nothing is known
  kSystem, // between NUMA nodes (SYS)
};
constexpr auto kFarthest = Distance::kSystem;
const char* distanceText(Distance distance);

// Where a device is plugged in.
struct Place {
  // Of sysfs, from the host bridge on: pci0000:16, 0000:16:01.0, ...; empty:
  // it is no PCI device, as soft-RoCE's.
  std::vector<std::string> path;
  int node = -1; // NUMA; -1: the machine does not tell
};

// What the kernel tells of PCIe and NUMA in sysfs.
class Topology {
 public:
  explicit Topology(std::filesystem::path sysfs) : sysfs_(std::move(sysfs)) {}

  Place ofRdmaDevice(const std::string& name) const; // "mlx5_0"
  Place ofPciDevice(const std::string& address) const; // "0000:18:00.0"
  // The NUMA nodes of these CPUs; none if the kernel does not tell.
  std::vector<int> nodesOf(const std::vector<int>& cpus) const;

  static Distance between(const Place& one, const Place& other);
  // To memory of a process that runs on these nodes.
  static Distance between(const Place& one, const std::vector<int>& nodes);

 private:
  Place placeOf(const std::filesystem::path& link) const;

  const std::filesystem::path sysfs_;
};

// The CPUs that this process may run on.
std::vector<int> allowedCpus();

} // namespace dlslime::rdma
