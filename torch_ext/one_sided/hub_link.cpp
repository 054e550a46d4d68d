#include "torch_ext/one_sided/hub_link.h"

#include "torch_ext/support/gil.h"

namespace dlslime {

GuestLink::~GuestLink() {
  if (pythonEnds()) {
    return;
  }
  const WithoutGil others;
  if (!closed_.load()) {
    const auto shared = handle();
    shared->engine->keepGuest(shared->group);
  }
}

void GuestLink::close() {
  if (closed_.exchange(true)) {
    return;
  }
  const auto shared = handle();
  shared->engine->leave(*shared->group);
}

HubLink::HubLink(const Endpoint::Options& options)
    : hub_(std::make_unique<Hub>(acquireEngine(), options)),
      timeout_(options.timeout) {}

HubLink::~HubLink() {
  if (pythonEnds()) {
    [[maybe_unused]] auto* const leaked = hub_.release();
    return;
  }
  const WithoutGil others;
  hub_.reset();
}

std::vector<std::shared_ptr<GuestLink>> HubLink::accept() {
  refuseInForkedChild();
  hub_->engine()->poke(); // polling alone must make progress
  std::vector<std::shared_ptr<GuestLink>> acceptQueue;
  for (auto& group : hub_->accept()) {
    const auto shared = std::make_shared<GroupHandle>();
    shared->engine = hub_->engine();
    shared->group = std::move(group);
    shared->timeout.store(timeout_);
    acceptQueue.push_back(std::make_shared<GuestLink>(shared));
  }
  return acceptQueue;
}

} // namespace dlslime
