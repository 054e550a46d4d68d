#pragma once

#include <memory>
#include <string>

#include "interface/memory.h"
#include "interface/side_socket.h"

namespace dlslime::gloo {

// Ordered, blocking bytes between both ends of a pair, over a message library
// not linked by csrc: torch_ext implements the class over torch's own Gloo. One
// thread sends while a second receives. Failures are thrown as std::exception.
class Carrier {
 public:
  virtual ~Carrier() = default;
  virtual void send(const std::byte* data, size_t size) = 0;
  // Receives exactly `size` bytes, sent by one send() of equal size.
  virtual void receive(std::byte* data, size_t size) = 0;
  // Makes send() and receive() throw, now and later. Any thread.
  virtual void abort() noexcept = 0;
};

// Makes carriers; each group has one.
class CarrierSource {
 public:
  virtual ~CarrierSource() = default;
  // Throws Error if something needed by make() is missing.
  virtual void require() {}
  // Makes a carrier. Blocks until the peer calls make() with an equal `nonce`.
  // `end` is 0 at the initiator and 1 at the accepting end; `side` opens the
  // pair's side socket.
  virtual std::unique_ptr<Carrier>
  make(const std::string& nonce, int end, const OpenSideSocket& side) = 0;
};

} // namespace dlslime::gloo
