#include "transports/rdma/device/nic.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/name_list.h"

namespace dlslime::rdma {

namespace {

// lanes() and laneMegabits() decode a port's attributes, coded as in the
// InfiniBand specification.
uint64_t lanes(uint8_t width) {
  switch (width) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 1;
  }
}
uint64_t laneMegabits(uint8_t speed) {
  switch (speed) {
    case 1: // SDR
      return 2500;
    case 2: // DDR
      return 5000;
    case 4: // QDR
    case 8: // FDR10
      return 10000;
    case 16: // FDR
      return 14000;
    case 32: // EDR
      return 25000;
    case 64: // HDR
      return 50000;
    case 128: // NDR
      return 100000;
    default:
      return 2500;
  }
}

// Number of registrations kept per NIC. Devices have room for hundreds of
// thousands, but each is looked up in a tree.
constexpr size_t kMostRegistrations = 4096;

int mtuBytes(ibv_mtu mtu) {
  return 128 << static_cast<int>(mtu);
}

// Splits "mlx5_0:2" into name and port; the port is 0 if absent.
std::pair<std::string, int> nameAndPort(const std::string& entry) {
  const auto colon = entry.find(':');
  return colon == std::string::npos
      ? std::pair(entry, 0)
      : std::pair(entry.substr(0, colon), std::atoi(&entry[colon + 1]));
}

bool matches(
    const std::string& entry,
    bool exact,
    const std::string& device,
    uint8_t port,
    const std::vector<std::string>& devices) {
  const auto [name, wantedPort] = nameAndPort(entry);
  if (wantedPort != 0 && wantedPort != port) {
    return false;
  }
  const bool whole =
      exact || std::find(devices.begin(), devices.end(), name) != devices.end();
  return whole ? device == name : device.rfind(name, 0) == 0;
}

class DeviceList {
 public:
  explicit DeviceList(const Verbs& verbs) : verbs_(verbs) {
    list_ = verbs.getDeviceList(&count_);
    if (list_ == nullptr) {
      throw Error(
          ErrorCode::kUnavailable,
          "RDMA devices can't be listed: " + errnoText(errno) +
              ": check that the kernel's module ib_uverbs is loaded");
    }
  }
  ~DeviceList() {
    verbs_.freeDeviceList(list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ibv_device** begin() const {
    return list_;
  }
  ibv_device** end() const {
    return list_ + count_;
  }

 private:
  const Verbs& verbs_;
  ibv_device** list_ = nullptr;
  int count_ = 0;
};

} // namespace

bool selects(
    const std::string& wanted,
    const std::string& device,
    uint8_t port,
    const std::vector<std::string>& devices) {
  const auto list = NameList::parse(wanted);
  return list.chooses([&](const std::string& entry) {
    return matches(entry, list.whole, device, port, devices);
  });
}

Nic::Nic(ProtectionDomainPtr domain, uint8_t port, const RdmaConfig& config)
    : domain_(std::move(domain)),
      memory_(std::make_shared<RegistrationCache>(
          domain_,
          RegistrationCache::Limits{
              config.cacheBytes,
              config.cacheBytes > 0 ? kMostRegistrations : 0})),
      gpuMemory_(std::make_unique<GpuRegistrations>(domain_, config.gpuDirect)),
      port_(port),
      wantedGid_(config.gidIndex),
      name_(domain_->context()->name() + ":" + std::to_string(port)) {
  readLimits();
}

Status Nic::refresh() {
  try {
    readPort();
    return {};
  } catch (const Error& error) {
    return error.status();
  }
}

void Nic::readLimits() {
  ibv_device_attr device{};
  const int error = context()->verbs().queryDevice(context()->get(), &device);
  if (error != 0) {
    throwErrno("cannot query RDMA device " + context()->name(), error);
  }
  limits_.maxReadsIn = device.max_qp_rd_atom;
  limits_.maxReadsOut = device.max_qp_init_rd_atom;
  limits_.maxRequests = static_cast<uint32_t>(std::max(device.max_qp_wr, 0));
  limits_.maxCompletions = static_cast<uint32_t>(std::max(device.max_cqe, 0));
}

void Nic::readPort() {
  ibv_port_attr port{};
  const int error =
      context()->verbs().queryPort(context()->get(), port_, &port);
  if (error != 0) {
    throwErrno("cannot query port " + name_, error);
  }
  if (port.state != IBV_PORT_ACTIVE) {
    throw Error(ErrorCode::kUnavailable, name_ + " is not active");
  }
  ethernet_ = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  globalHeaderRequired_ = (port.flags & IBV_QPF_GRH_REQUIRED) != 0;
  mtu_ = port.active_mtu;
  bitsPerSecond_ =
      lanes(port.active_width) * laneMegabits(port.active_speed) * 1'000'000;
  // The table may have a thousand entries, and reading each takes a system
  // call. So the table is not read again while the used entry is unchanged and
  // could not be better.
  if (addressed_ && isBest(gid_, ethernet_) && readGid(gid_.index) == gid_) {
    setAddress(gid_, port.lid);
    return;
  }
  const auto table = readGids(static_cast<uint32_t>(port.gid_tbl_len));
  const auto gid = chooseGid(table, ethernet_, wantedGid_);
  if (!gid) {
    throw Error(ErrorCode::kUnavailable, noGidText(table));
  }
  setAddress(*gid, port.lid);
}

std::string Nic::noGidText(const std::vector<Gid>& table) const {
  const auto all = ", the table has " + gidTableText(table);
  if (wantedGid_ >= 0) {
    return name_ + " has no usable GID at index " + std::to_string(wantedGid_) +
        all +
        "; unset DLSLIME_GID_INDEX and NCCL_IB_GID_INDEX to take the best, or "
        "set one of these";
  }
  return name_ + " has no usable GID" + all +
      (ethernet_ ? "; give its network device an IP address, which RoCE v2 "
                   "needs"
                 : "; see whether a subnet manager runs");
}

void Nic::setAddress(const Gid& gid, uint16_t lid) {
  if (addressed_ && (!(gid == gid_) || (!ethernet_ && lid != lid_))) {
    lose("its address has changed");
  }
  addressed_ = true;
  gid_ = gid;
  lid_ = lid;
}

// Returns nothing if the entry is empty.
std::optional<Gid> Nic::readGid(uint32_t index) const {
  ibv_gid_entry entry{};
  if (context()->verbs().queryGidEx(
          context()->get(), port_, index, &entry, 0, sizeof(entry)) != 0) {
    return std::nullopt;
  }
  const auto kind = entry.gid_type == IBV_GID_TYPE_ROCE_V2
      ? GidKind::kRoceV2
      : (entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidKind::kRoceV1
                                                : GidKind::kInfiniBand);
  return Gid{index, kind, entry.gid};
}

std::vector<Gid> Nic::readGids(uint32_t count) const {
  std::vector<Gid> table;
  for (uint32_t index = 0; index < std::min(count, kMostGids); ++index) {
    if (const auto gid = readGid(index)) {
      table.push_back(*gid);
    }
  }
  return table;
}

std::string Nic::describe() const {
  return name_ + ", " + (ethernet_ ? "Ethernet" : "InfiniBand") + ", GID " +
      std::to_string(gid_.index) + " (" + gidText(gid_.value) + "), " +
      std::to_string(bitsPerSecond_ / 1'000'000'000) + " Gb/s, MTU " +
      std::to_string(mtuBytes(mtu_)) + ", " + distanceText(distance());
}

namespace {

int portsOf(const Context& context) {
  ibv_device_attr attributes{};
  const int error = context.verbs().queryDevice(context.get(), &attributes);
  if (error != 0) {
    throwErrno("cannot query RDMA device " + context.name(), error);
  }
  return attributes.phys_port_cnt;
}

// Records a failure for the life of the process. A lack of descriptors passes,
// so kExhausted is thrown instead.
void reject(const Error& error, NicList& found) {
  if (error.status().code() == ErrorCode::kExhausted) {
    throw Error(error.status());
  }
  found.rejected.emplace_back(error.what());
}

void openPorts(
    const Verbs& verbs,
    ibv_device* device,
    const std::vector<std::string>& devices,
    const RdmaConfig& config,
    NicList& found) {
  const auto domain = std::make_shared<ProtectionDomain>(
      std::make_shared<Context>(verbs, device));
  const auto& name = domain->context()->name();
  const int ports = portsOf(*domain->context());
  for (int port = 1; port <= ports; ++port) {
    const auto number = static_cast<uint8_t>(port);
    if (!selects(config.nics, name, number, devices)) {
      found.rejected.push_back(
          name + ":" + std::to_string(port) +
          " is not in DLSLIME_NICS=" + config.nics);
      continue;
    }
    try {
      found.nics.push_back(std::make_shared<Nic>(domain, number, config));
    } catch (const Error& error) {
      reject(error, found);
    }
  }
}

} // namespace

std::vector<NicPtr> NicList::usable(std::vector<std::string>& reasons) const {
  std::vector<NicPtr> found;
  reasons = rejected;
  for (const auto& nic : nics) {
    const auto status = nic->refresh();
    if (status.ok()) {
      found.push_back(nic);
    } else {
      reasons.push_back(status.message());
    }
  }
  return found;
}

NicList openNics(const Verbs& verbs, const RdmaConfig& config) {
  NicList found;
  const DeviceList devices(verbs);
  std::vector<std::string> names;
  for (auto* const device : devices) {
    names.emplace_back(verbs.getDeviceName(device));
  }
  for (auto* const device : devices) {
    try {
      openPorts(verbs, device, names, config, found);
    } catch (const Error& error) {
      reject(error, found);
    }
  }
  return found;
}

} // namespace dlslime::rdma
