#include "base/config.h"

#include <cstdlib>
#include <map>

#include "base/status.h"

namespace dlslime {

namespace {

constexpr size_t kPage =
    4096; // bytes; rings are mapped, so they consist of whole pages
constexpr int kMostGidIndex =
    255; // an address handle has eight bits for the index

template <typename T>
using Words = std::map<std::string, T>;

// Returns the words for switching a feature on or off.
const Words<bool>& switchWords() {
  static const auto* words = new Words<bool>{{"auto", true}, {"off", false}};
  return *words;
}

const Words<RoutePolicy>& routeWords() {
  static const auto* words = new Words<RoutePolicy>{
      {"auto", RoutePolicy::kAuto},
      {"shm", RoutePolicy::kShm},
      {"rdma", RoutePolicy::kRdma},
      {"tcp", RoutePolicy::kTcp},
      {"gloo", RoutePolicy::kGloo}};
  return *words;
}

const Words<FallbackPolicy>& fallbackWords() {
  static const auto* words = new Words<FallbackPolicy>{
      {"warn", FallbackPolicy::kWarn},
      {"allow", FallbackPolicy::kAllow},
      {"forbid", FallbackPolicy::kForbid}};
  return *words;
}

template <typename T>
T parseWord(
    const std::string& name,
    const std::string& text,
    const Words<T>& words) {
  const auto found = words.find(text);
  if (found != words.end()) {
    return found->second;
  }
  std::string allowed;
  for (const auto& [word, value] : words) {
    allowed += (allowed.empty() ? "" : "|") + word;
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      name + "=" + text + " is not understood: set it to " + allowed);
}

// Returns the variable's value; an empty variable counts as unset.
std::string textOf(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

template <typename T>
void readWord(const char* name, const Words<T>& words, T& value) {
  const auto text = textOf(name);
  if (!text.empty()) {
    value = parseWord(name, text, words);
  }
}

void readNumber(const char* name, size_t least, size_t most, size_t& value) {
  const auto text = textOf(name);
  if (text.empty()) {
    return;
  }
  char* end = nullptr;
  const auto number = std::strtoull(text.c_str(), &end, 10);
  if (*end != '\0' || text.front() == '-' || number < least || number > most) {
    throw Error(
        ErrorCode::kInvalidArgument,
        name + ("=" + text) + " is not understood: set it to " +
            std::to_string(least) + ".." + std::to_string(most));
  }
  value = number;
}

void readMilliseconds(const char* name, milliseconds& value) {
  auto number = static_cast<size_t>(value.count());
  readNumber(name, 0, 3'600'000, number);
  value = milliseconds(number);
}

void readMicroseconds(
    const char* name,
    size_t least,
    size_t most,
    std::optional<microseconds>& value) {
  size_t number = SIZE_MAX;
  readNumber(name, least, most, number);
  if (number != SIZE_MAX) {
    value = microseconds(number);
  }
}

// Returns `name`, a variable of ours, if set, else `instead`, NCCL's variable.
const char* whichOf(const char* name, const char* instead) {
  return textOf(name).empty() ? instead : name;
}

void readSmall(const char* name, const char* instead, int most, int& value) {
  auto number = static_cast<size_t>(value);
  readNumber(whichOf(name, instead), 0, static_cast<size_t>(most), number);
  value = static_cast<int>(number);
}

RdmaConfig readRdma() {
  RdmaConfig rdma;
  // The values of NCCL_IB_DISABLE are reversed: 1 switches InfiniBand off.
  const Words<bool> disabled{{"0", true}, {"1", false}};
  readWord("NCCL_IB_DISABLE", disabled, rdma.enabled);
  readWord("DLSLIME_RDMA", switchWords(), rdma.enabled);
  readWord("DLSLIME_GPUDIRECT", switchWords(), rdma.gpuDirect);
  rdma.near = textOf("DLSLIME_NEAR");
  rdma.nics = textOf(whichOf("DLSLIME_NICS", "NCCL_IB_HCA"));
  const char* const index = whichOf("DLSLIME_GID_INDEX", "NCCL_IB_GID_INDEX");
  if (textOf(index) != "-1") { // NCCL's default, and ours
    readSmall(index, index, kMostGidIndex, rdma.gidIndex);
  }
  readSmall("DLSLIME_IB_SL", "NCCL_IB_SL", 15, rdma.serviceLevel);
  readSmall("DLSLIME_IB_TC", "NCCL_IB_TC", 255, rdma.trafficClass);
  readSmall("DLSLIME_IB_PKEY", "NCCL_IB_PKEY", 65535, rdma.pkeyIndex);
  readSmall("DLSLIME_IB_TIMEOUT", "NCCL_IB_TIMEOUT", 31, rdma.timeout);
  readSmall("DLSLIME_IB_RETRY_CNT", "NCCL_IB_RETRY_CNT", 7, rdma.retryCount);
  readSmall(
      "DLSLIME_QPS_PER_NIC",
      "NCCL_IB_QPS_PER_CONNECTION",
      128, // NCCL's limit; a pair has at most eight over all NICs
      rdma.queuePairs);
  rdma.queuePairs = std::max(rdma.queuePairs, 1);
  readNumber("DLSLIME_REGISTRATION_BYTES", 0, SIZE_MAX / 2, rdma.cacheBytes);
  return rdma;
}

void readInterfaces(Config& config) {
  constexpr auto kGloo =
      "GLOO_SOCKET_IFNAME"; // lists whole names, not prefixes
  const char* name = whichOf("DLSLIME_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME");
  const bool gloo = textOf(name).empty() && !textOf(kGloo).empty();
  name = gloo ? kGloo : name;
  const auto text = textOf(name);
  config.interfaces = gloo ? "=" + text : text;
  config.interfacesSetting =
      text.empty() ? std::string() : std::string(name) + "=" + text;
}

void readRendezvousDirectory(Config& config) {
  const char* const name =
      whichOf("DLSLIME_RENDEZVOUS_DIR", "NVIDIA_DRA_LOCAL_IPC_DIR");
  config.rendezvousDir = textOf(name);
  config.rendezvousSetting = name + ("=" + config.rendezvousDir);
}

void readFlightRecord(Config& config) {
  config.flightDir = textOf("DLSLIME_FLIGHT_DIR");
  const Words<std::string> signals{{"USR1", "USR1"}, {"USR2", "USR2"}};
  readWord("DLSLIME_FLIGHT_SIGNAL", signals, config.flightSignal);
}

} // namespace

std::string routePolicyName(RoutePolicy policy) {
  for (const auto& [word, value] : routeWords()) {
    if (value == policy) {
      return word;
    }
  }
  return "?";
}

RoutePolicy parseRoutePolicy(const std::string& text) {
  return parseWord("route", text, routeWords());
}

FallbackPolicy parseFallbackPolicy(const std::string& text) {
  return parseWord("fallback", text, fallbackWords());
}

Config Config::fromEnvironment() {
  Config config;
  const Words<LogLevel> levels{
      {"error", LogLevel::kError},
      {"warn", LogLevel::kWarning},
      {"info", LogLevel::kInfo},
      {"debug", LogLevel::kDebug}};
  readWord("DLSLIME_ROUTE", routeWords(), config.route);
  readWord("DLSLIME_SHM", switchWords(), config.shm);
  readWord("DLSLIME_CMA", switchWords(), config.crossMemoryAttach);
  // torch's log level counts unless DLSLIME_LOG is set.
  const auto level = textOf("TORCH_CPP_LOG_LEVEL");
  if (level == "INFO") {
    config.logLevel = LogLevel::kInfo;
  } else if (level == "ERROR" || level == "FATAL") {
    config.logLevel = LogLevel::kError;
  }
  readWord("DLSLIME_LOG", levels, config.logLevel);
  readWord("DLSLIME_FALLBACK", fallbackWords(), config.fallback);
  config.rdma = readRdma();
  readWord("DLSLIME_GPU_KERNEL", switchWords(), config.gpuKernel);
  const Words<bool> atOwnRisk{{"on", true}, {"off", false}};
  readWord("DLSLIME_STREAM_WAITS", atOwnRisk, config.streamWaits);
  readRendezvousDirectory(config);
  config.hostId = textOf(whichOf("DLSLIME_HOSTID", "NCCL_HOSTID"));
  readInterfaces(config);
  readNumber("DLSLIME_EAGER_LIMIT", 0, 1 << 20, config.eagerLimitBytes);
  readNumber("DLSLIME_RING_BYTES", 1 << 14, 1 << 30, config.ringBytes);
  config.ringBytes = (config.ringBytes + kPage - 1) / kPage * kPage;
  readNumber(
      "DLSLIME_UNEXPECTED_LIMIT", 0, SIZE_MAX / 2, config.unexpectedLimitBytes);
  readNumber(
      "DLSLIME_ANNOUNCED_LIMIT",
      4096,
      SIZE_MAX / 2,
      config.announcedLimitBytes);
  readMicroseconds("DLSLIME_SPIN_US", 0, 1'000'000, config.spin);
  readMicroseconds("DLSLIME_TICK_US", 100, 3'600'000'000, config.tick);
  readMilliseconds("DLSLIME_RECOVERY_MS", config.recovery);
  readMilliseconds("DLSLIME_RETURN_MS", config.returning);
  readMilliseconds("DLSLIME_LINGER_MS", config.linger);
  readFlightRecord(config);
  return config;
}

} // namespace dlslime
