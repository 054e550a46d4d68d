#include "engine/hub.h"

#include "engine/bootstrap/address_directory.h"
#include "engine/peer/accept_queue.h"

namespace dlslime {

Hub::Hub(std::shared_ptr<Engine> engine, const Endpoint::Options& options)
    : engine_(std::move(engine)),
      acceptQueue_(std::make_shared<AcceptQueue>(
          engine_->config().unexpectedLimitBytes / 2)) {
  const auto exchange = std::make_shared<MapRendezvous>();
  auto group = groupOptions(options, 0, exchange);
  group.acceptQueue = acceptQueue_;
  group_ = engine_->join(std::move(group));
  // The hub's id is the lowest possible, so every endpoint takes the hub for
  // rank 0.
  const auto record = *exchange->tryGet(addressKey(0));
  address_ = endpointAddress(Bytes(kEndpointIdBytes), record, record);
}

std::vector<std::shared_ptr<Group>> Hub::accept() {
  return acceptQueue_->accept();
}

void Hub::leave() {
  if (left_.exchange(true)) {
    return;
  }
  engine_->leave(*group_);
  for (const auto& guest : acceptQueue_->close()) {
    engine_->leave(*guest);
  }
}

} // namespace dlslime
