#pragma once

#include <memory>
#include <string>

#include "interface/memory.h"
#include "interface/side_socket.h"

namespace dlslime::gloo {

// Ordered blocking bytes between the two ends of one pair, by a message
// library that we do not link: torch_ext implements it over torch's own Gloo.
// One thread sends while another receives. Errors are thrown as Error.
class Carrier {
 public:
  virtual ~Carrier() = default;
  virtual void send(const std::byte* data, size_t size) = 0;
  // Exactly `size` bytes of one send() of that size.
  virtual void receive(std::byte* data, size_t size) = 0;
  // Any thread: makes the two above throw, now and later.
  virtual void abort() noexcept = 0;
};

// Makes carriers; each group has one.
class CarrierSource {
 public:
  virtual ~CarrierSource() = default;
  // Throws Error: there is something that none can be made without.
  virtual void require() {}
  // Blocks until the other end does the same with the same `nonce`. `end` is
  // 0 at the initiator, 1 at the other.
  virtual std::unique_ptr<Carrier>
  make(const std::string& nonce, int end, const OpenSideSocket& side) = 0;
};

} // namespace dlslime::gloo
