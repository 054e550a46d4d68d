#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "interface/accelerator.h"
#include "interface/transport.h"

namespace dlslime {

// A route that may be tried, or why not.
struct RouteOption {
  std::string route;
  Transport* transport = nullptr;
  std::string reason; // where there is no transport
};

// The routes that this build and this machine have. The only file of the
// engine that names them, and what knows of GPUs.
class Transports {
 public:
  explicit Transports(const Config& config);

  // Those that exist here.
  const std::vector<std::unique_ptr<Transport>>& all() const {
    return all_;
  }
  Transport* find(const std::string& name) const;
  // Why find() has nothing of this name.
  std::string whyNot(const std::string& name) const;
  // All that we know, best first.
  const std::vector<RouteOption>& routes() const {
    return routes_;
  }

  // A process's way to itself.
  static std::unique_ptr<Connection> makeSelfConnection();

 private:
  template <typename Make>
  void add(const char* name, const Make& make);

  std::vector<std::unique_ptr<Transport>> all_;
  std::vector<RouteOption> routes_;
};

// The GPUs of this process. Throws Error: there is no driver for them.
std::unique_ptr<Accelerator> makeAccelerator(const Config& config);
// Which of them has this address, or MemoryView::kProcessor.
int deviceOf(const std::byte* address);

} // namespace dlslime
