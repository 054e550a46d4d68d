#include "transports/rdma/device/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

namespace dlslime::rdma {

namespace {

std::string firstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the numbers of a list: 0, 1, 2, 3, 8 for "0-3,8".
std::vector<int> numbersOf(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = -1;
    const auto* const end = range.data() + range.size();
    const auto parsed = std::from_chars(range.data(), end, first);
    int last = first;
    if (parsed.ptr != end) {
      std::from_chars(parsed.ptr + 1, end, last);
    }
    for (int number = first; 0 <= number && number <= last; ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

// Returns the path without links, or an empty text.
std::string resolved(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> found(
      realpath(path.c_str(), nullptr), &std::free);
  return found ? std::string(found.get()) : std::string();
}

Place placeOf(const std::string& link) {
  Place place;
  const auto path = resolved(link);
  if (path.empty()) {
    return place;
  }
  std::istringstream parts(path);
  for (std::string name; std::getline(parts, name, '/');) {
    if (name.rfind("pci", 0) == 0 || !place.path.empty()) {
      place.path.push_back(name);
    }
  }
  const auto node = firstLine(path + "/numa_node");
  std::from_chars(node.data(), node.data() + node.size(), place.node);
  return place;
}

} // namespace

const char* distanceText(Distance distance) {
  switch (distance) {
    case Distance::kSwitch:
      return "PIX";
    case Distance::kSwitches:
      return "PXB";
    case Distance::kHostBridge:
      return "PHB";
    case Distance::kNode:
      return "NODE";
    case Distance::kSystem:
      break;
  }
  return "SYS";
}

Place Topology::ofRdmaDevice(const std::string& name) const {
  return placeOf(sysfs_ + "/class/infiniband/" + name + "/device");
}

Place Topology::ofPciDevice(const std::string& address) const {
  return address.empty() ? Place()
                         : placeOf(sysfs_ + "/bus/pci/devices/" + address);
}

std::vector<int> Topology::nodesOf(const std::vector<int>& cpus) const {
  const auto all = sysfs_ + "/devices/system/node";
  std::vector<int> nodes;
  for (const int node : numbersOf(firstLine(all + "/online"))) {
    const auto own =
        numbersOf(firstLine(all + "/node" + std::to_string(node) + "/cpulist"));
    if (std::find_first_of(own.begin(), own.end(), cpus.begin(), cpus.end()) !=
        own.end()) {
      nodes.push_back(node);
    }
  }
  return nodes;
}

Distance Topology::between(const Place& one, const Place& other) {
  const auto differs = std::mismatch(
      one.path.begin(), one.path.end(), other.path.begin(), other.path.end());
  const auto shared = differs.first - one.path.begin();
  if (shared > 1) {
    // Below the last shared place, each path has a port of the switch and the
    // device.
    const auto below = std::max(
        one.path.end() - differs.first, other.path.end() - differs.second);
    return below <= 2 ? Distance::kSwitch : Distance::kSwitches;
  }
  if (shared == 1) {
    return Distance::kHostBridge;
  }
  return one.node == other.node || one.node < 0 || other.node < 0
      ? Distance::kNode
      : Distance::kSystem;
}

Distance Topology::between(const Place& one, const std::vector<int>& nodes) {
  const bool known = one.node >= 0 && !nodes.empty();
  return known && std::find(nodes.begin(), nodes.end(), one.node) == nodes.end()
      ? Distance::kSystem
      : Distance::kNode;
}

std::vector<int> allowedCpus() {
  // Larger than any machine's number of CPUs: the kernel refuses sets smaller
  // than its own.
  constexpr int kMostCpus = 16384;
  std::vector<int> cpus;
  const auto bytes = CPU_ALLOC_SIZE(kMostCpus);
  std::vector<std::byte> memory(bytes);
  auto* const set = reinterpret_cast<cpu_set_t*>(memory.data());
  CPU_ZERO_S(bytes, set);
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) {
        cpus.push_back(cpu);
      }
    }
  }
  return cpus;
}

} // namespace dlslime::rdma
