#include "transports/tcp/tcp_transport.h"

#include "transports/tcp/tcp_connection.h"

namespace dlslime::tcp {

std::unique_ptr<Connection> TcpTransport::connect(const Context& context) {
  requireDescriptors(1);
  auto pending = PendingSocket::open(
      context.sideSocket, [ready = ready_] { ready->wake(); });
  return std::make_unique<TcpConnection>(ready_, std::move(pending));
}

std::unique_ptr<Connection> TcpTransport::accept(
    const Context& context,
    Offer /*offer*/,
    Offer& /*answer*/) {
  return connect(context);
}

std::unique_ptr<Connection> TcpTransport::finish(
    const Context& context,
    Offer /*answer*/) {
  return connect(context);
}

} // namespace dlslime::tcp
