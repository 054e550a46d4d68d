#include <torch/csrc/utils/pybind.h>

#include <string>

#include "base/config.h"

namespace dlslime {

namespace py = pybind11;

namespace {

const char* switchText(bool on) {
  return on ? "auto" : "off";
}

std::string fallbackText(FallbackPolicy policy) {
  switch (policy) {
    case FallbackPolicy::kWarn:
      return "warn";
    case FallbackPolicy::kAllow:
      return "allow";
    case FallbackPolicy::kForbid:
      return "forbid";
  }
  return "?";
}

std::string levelText(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarning:
      return "warn";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      return "debug";
  }
  return "?";
}

// Returns the number of a time, or None: the engine chooses.
py::object chosen(const std::optional<microseconds>& time) {
  return time ? py::object(py::int_(time->count())) : py::none();
}

void addRdma(py::dict& values, const RdmaConfig& rdma) {
  values["DLSLIME_RDMA"] = switchText(rdma.enabled);
  values["DLSLIME_NICS"] = rdma.nics;
  values["DLSLIME_NEAR"] = rdma.near;
  values["DLSLIME_GPUDIRECT"] = switchText(rdma.gpuDirect);
  values["DLSLIME_GID_INDEX"] =
      rdma.gidIndex < 0 ? py::object(py::none()) : py::int_(rdma.gidIndex);
  values["DLSLIME_IB_SL"] = rdma.serviceLevel;
  values["DLSLIME_IB_TC"] = rdma.trafficClass;
  values["DLSLIME_IB_PKEY"] = rdma.pkeyIndex;
  values["DLSLIME_IB_TIMEOUT"] = rdma.timeout;
  values["DLSLIME_IB_RETRY_CNT"] = rdma.retryCount;
  values["DLSLIME_QPS_PER_NIC"] = rdma.queuePairs;
  values["DLSLIME_REGISTRATION_BYTES"] = rdma.cacheBytes;
}

void addTimes(py::dict& values, const Config& config) {
  values["DLSLIME_SPIN_US"] = chosen(config.spin);
  values["DLSLIME_TICK_US"] = chosen(config.tick);
  values["DLSLIME_RECOVERY_MS"] = config.recovery.count();
  values["DLSLIME_RETURN_MS"] = config.returning.count();
  values["DLSLIME_LINGER_MS"] = config.linger.count();
}

// Returns the settings read from the environment now, by variable. An empty
// text or None: the engine chooses.
py::dict configValues() {
  const auto config = Config::fromEnvironment();
  py::dict values;
  values["DLSLIME_ROUTE"] = routePolicyName(config.route);
  values["DLSLIME_FALLBACK"] = fallbackText(config.fallback);
  values["DLSLIME_SHM"] = switchText(config.shm);
  values["DLSLIME_CMA"] = switchText(config.crossMemoryAttach);
  addRdma(values, config.rdma);
  values["DLSLIME_GPU_KERNEL"] = switchText(config.gpuKernel);
  values["DLSLIME_STREAM_WAITS"] = config.streamWaits ? "on" : "off";
  values["DLSLIME_RENDEZVOUS_DIR"] = config.rendezvousDir;
  values["DLSLIME_HOSTID"] = config.hostId;
  values["DLSLIME_SOCKET_IFNAME"] = config.interfaces;
  values["DLSLIME_EAGER_LIMIT"] = config.eagerLimitBytes;
  values["DLSLIME_RING_BYTES"] = config.ringBytes;
  values["DLSLIME_UNEXPECTED_LIMIT"] = config.unexpectedLimitBytes;
  values["DLSLIME_ANNOUNCED_LIMIT"] = config.announcedLimitBytes;
  addTimes(values, config);
  values["DLSLIME_FLIGHT_DIR"] = config.flightDir;
  values["DLSLIME_FLIGHT_SIGNAL"] = config.flightSignal;
  values["DLSLIME_LOG"] = levelText(config.logLevel);
  return values;
}

} // namespace

void bindConfig(py::module& module) {
  module.def("config_values", &configValues);
}

} // namespace dlslime
