#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <optional>

#include "engine/bootstrap/address_directory.h"
#include "engine/bootstrap/wire_records.h"
#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/peers/initiator.h"
#include "transports/shm/shm_transport.h"

namespace dlslime::testing {

inline size_t openDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// Two ranks before their first message, and sockets that knock at rank 0.
class KnockingTest : public ::testing::Test {
 protected:
  KnockingTest() {
    const auto bytes = world.rendezvous("first")->tryGet(addressKey(0));
    record = decodeAddress(*bytes);
  }
  ControlSocket knock() {
    return ControlSocket::connectTo(record.socketName);
  }
  // Sends raw bytes, without a frame. The socket takes some hundred single
  // bytes before the listener reads.
  static void sendRaw(const ControlSocket& socket, const Bytes& bytes) {
    pollfd entry{socket.fd(), POLLOUT, 0};
    ASSERT_EQ(::poll(&entry, 1, 5000), 1);
    ASSERT_EQ(
        ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
        static_cast<ssize_t>(bytes.size()));
  }
  static bool readable(const ControlSocket& socket, int timeoutMs = 5000) {
    pollfd entry{socket.fd(), POLLIN, 0};
    return ::poll(&entry, 1, timeoutMs) == 1;
  }
  static ::testing::AssertionResult isClosed(ControlSocket& socket) {
    if (!readable(socket)) {
      return ::testing::AssertionFailure() << "it stays open";
    }
    try {
      const auto frame = socket.receiveFrame();
      return ::testing::AssertionFailure()
          << "there is an answer: " << frame.has_value();
    } catch (const Error&) {
      return ::testing::AssertionSuccess();
    }
  }
  // Returns whether the listener has hung up, possibly after an answer.
  static bool hasHungUp(const ControlSocket& socket) {
    std::array<std::byte, 4096> answer{};
    ssize_t got = 0;
    do {
      got = ::recv(socket.fd(), answer.data(), answer.size(), MSG_DONTWAIT);
    } while (got > 0);
    return socket.ended();
  }
  Initiator initiator() {
    return {knock(), record};
  }
  // Offers shared memory, with the nonce "n", and returns the answer.
  std::optional<Welcome> offerBy(Initiator& peer) {
    Transport::Context context;
    context.nonce = "n";
    const auto offer = shared_.offer(context);
    shared_.withdraw(context);
    peer.hello.nonce = context.nonce;
    peer.hello.blob = offer.blob;
    return peer.ask(offer.fds);
  }
  void expectWell() {
    EXPECT_TRUE(world.passes(0, 1));
    EXPECT_TRUE(world.passes(1, 0, 3 << 20));
  }
  size_t refusals() const {
    return log.count("refused");
  }
  void expectRefusal() {
    EXPECT_TRUE(eventually([&] { return refusals() > 0; }));
    EXPECT_EQ(refusals(), 1U) << log.all();
    expectWell();
  }

  LogCapture log;
  Cluster world{2};
  AddressRecord record;

 private:
  shm::ShmTransport shared_{Config{}}; // for offerBy()
};

} // namespace dlslime::testing
