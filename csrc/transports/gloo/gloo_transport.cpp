#include "transports/gloo/gloo_transport.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "transports/gloo/gloo_connection.h"

namespace dlslime::gloo {

GlooTransport::GlooTransport() : event_(std::make_shared<UniqueFd>()) {
  *event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!*event_) {
    throwErrno("cannot create an eventfd", errno);
  }
}

void GlooTransport::drainWakeFds() {
  uint64_t count = 0;
  [[maybe_unused]] const auto got = read(event_->get(), &count, sizeof(count));
}

// Descriptors for a pair's Gloo group, required up front: a lack during the
// set-up would show late, and at one end only.
constexpr size_t kDescriptors = 8;

std::unique_ptr<Connection> GlooTransport::connect(
    const Context& context,
    int end) {
  if (!context.carrierSource) {
    throw Error(
        ErrorCode::kUnavailable,
        "the group has no Gloo to carry messages (torch was built without it)");
  }
  requireDescriptors(kDescriptors);
  auto source = context.carrierSource;
  source->require();
  return std::make_unique<GlooConnection>(
      [source, nonce = context.nonce, side = context.sideSocket, end] {
        return source->make(nonce, end, side);
      },
      [event = event_] {
        const uint64_t one = 1;
        [[maybe_unused]] const auto put =
            write(event->get(), &one, sizeof(one));
      });
}

std::unique_ptr<Connection> GlooTransport::accept(
    const Context& context,
    Offer /*offer*/,
    Offer& /*answer*/) {
  return connect(context, 1);
}

std::unique_ptr<Connection> GlooTransport::finish(
    const Context& context,
    Offer /*answer*/) {
  return connect(context, 0);
}

} // namespace dlslime::gloo
