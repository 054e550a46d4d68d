#include "engine/transports.h"

#include "gloo/gloo_transport.h"
#include "loopback/loopback_connection.h"
#include "shm/shm_transport.h"

namespace dlslime {

Transports::Transports(const Config& config) {
  try {
    all_.push_back(std::make_unique<shm::ShmTransport>(config));
  } catch (const Error& error) {
    absent_.emplace_back("shm", error.what());
  }
  all_.push_back(std::make_unique<gloo::GlooTransport>());
}

Transport* Transports::find(const std::string& name) const {
  for (const auto& transport : all_) {
    if (transport->name() == name) {
      return transport.get();
    }
  }
  return nullptr;
}

std::unique_ptr<Connection> Transports::makeSelfConnection() {
  return std::make_unique<loopback::LoopbackConnection>(
      std::make_shared<loopback::Wire>(), 0, 0);
}

} // namespace dlslime
