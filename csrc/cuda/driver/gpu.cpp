#include "cuda/driver/gpu.h"

#include <array>
#include <cstdio>

#include "base/log.h"

namespace dlslime::cuda {

namespace {

std::string nameOf(const Driver& driver, Device device) {
  std::array<char, 256> name{};
  driver.check(
      driver.deviceGetName(name.data(), name.size(), device),
      "asking for a GPU's name");
  return name.data();
}

std::string pciAddressOf(const Driver& driver, Device device) {
  int domain = 0, bus = 0, slot = 0;
  const auto ask = [&](DeviceAttribute attribute, int& value) {
    driver.check(
        driver.deviceGetAttribute(&value, attribute, device),
        "asking for a GPU's PCI address");
  };
  ask(DeviceAttribute::kPciDomainId, domain);
  ask(DeviceAttribute::kPciBusId, bus);
  ask(DeviceAttribute::kPciDeviceId, slot);
  std::array<char, 64> text{};
  std::snprintf(
      text.data(), text.size(), "%04x:%02x:%02x.0", domain, bus, slot);
  return text.data();
}

bool hasContext(const Driver& driver, Device device) {
  unsigned flags = 0;
  int active = 0;
  driver.check(
      driver.primaryContextGetState(device, &flags, &active),
      "asking for a GPU's state");
  return active != 0;
}

} // namespace

std::vector<std::string> gpusInUse() {
  std::vector<std::string> found;
  if (!driverIsLoaded()) { // the program uses no GPU
    return found;
  }
  try {
    const auto& driver = loadDriver();
    for (Device device = 0; device < driver.devices; ++device) {
      if (hasContext(driver, device)) {
        found.push_back(pciAddressOf(driver, device));
      }
    }
  } catch (const Error& error) {
    logDebug(error.what());
  }
  return found;
}

Gpu::Gpu(const Driver& driver, Device ordinal)
    : driver_(driver), ordinal_(ordinal) {
  if (ordinal < 0 || ordinal >= driver.devices) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "there is no GPU " + std::to_string(ordinal) + ": this process sees " +
            std::to_string(driver.devices) + " (CUDA_VISIBLE_DEVICES)");
  }
  if (!hasContext(driver, ordinal)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "GPU " + std::to_string(ordinal) +
            " has no context in this process: no tensor can be on it");
  }
  name_ = nameOf(driver, ordinal);
  pciAddress_ = pciAddressOf(driver, ordinal);
  driver.check(driver.deviceGetUuid(&uuid_, ordinal), "asking for a GPU's id");
  driver.check(
      driver.primaryContextRetain(&context_, ordinal),
      "keeping a GPU's context");
}

Gpu::~Gpu() {
  driver_.primaryContextRelease(ordinal_);
}

std::string Gpu::describe() const {
  return "GPU " + std::to_string(ordinal_) + " (" + name_ + ", " + pciAddress_ +
      ")";
}

Gpu::Scope::Scope(const Gpu& gpu) : driver_(gpu.driver_) {
  driver_.check(driver_.contextPush(gpu.context_), "entering a GPU's context");
  driver_.exchangeCaptureMode(&captureMode_);
}

Gpu::Scope::~Scope() {
  driver_.exchangeCaptureMode(&captureMode_);
  Context left = nullptr;
  driver_.contextPop(&left);
}

} // namespace dlslime::cuda
