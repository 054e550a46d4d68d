#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/transport.h"

namespace dlslime {

// The routes that this build and this machine have, best first. The only file
// of the engine that names them.
class Transports {
 public:
  explicit Transports(const Config& config);

  const std::vector<std::unique_ptr<Transport>>& all() const {
    return all_;
  }
  Transport* find(const std::string& name) const;
  // Routes that do not exist here, each with its reason.
  const std::vector<std::pair<std::string, std::string>>& absent() const {
    return absent_;
  }

  // A process's way to itself.
  static std::unique_ptr<Connection> makeSelfConnection();

 private:
  template <typename Make>
  void add(const char* name, const Make& make);

  std::vector<std::unique_ptr<Transport>> all_;
  std::vector<std::pair<std::string, std::string>> absent_;
};

} // namespace dlslime
