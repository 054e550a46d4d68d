#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "interface/accelerator.h"
#include "interface/transport.h"

namespace dlslime {

// Route known to the engine, with a transport or with the reason for having
// none.
struct RouteOption {
  std::string route;
  Transport* transport = nullptr;
  std::string reason; // set if transport is null
};

// Routes of the build on the current machine. transports.cpp is the only file
// of the engine naming all routes and the CUDA accelerator.
class Transports {
 public:
  explicit Transports(const Config& config);

  // Transports of the routes available on the machine.
  const std::vector<std::unique_ptr<Transport>>& all() const {
    return all_;
  }
  Transport* find(const std::string& name) const;
  // Returns the reason why find(name) is null.
  std::string whyNot(const std::string& name) const;
  // All routes known to the engine, available or not, the preferred route
  // first.
  const std::vector<RouteOption>& routes() const {
    return routes_;
  }

  // Makes a connection of the process to itself, by the loopback route.
  static std::unique_ptr<Connection> makeSelfConnection();

 private:
  template <typename Make>
  void add(const char* name, const Make& make);

  std::vector<std::unique_ptr<Transport>> all_;
  std::vector<RouteOption> routes_;
};

// Makes the accelerator for the GPUs of the process. Throws Error if no GPU
// driver is available.
std::unique_ptr<Accelerator> makeAccelerator(const Config& config);
// Returns the GPU holding the address, or MemoryView::kProcessor.
int deviceOf(const std::byte* address);

} // namespace dlslime
