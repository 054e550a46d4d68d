#pragma once

#include <gtest/gtest.h>

#include "fakes/guarded_operation.h"
#include "fakes/log_capture.h"
#include "fakes/peers/endpoint.h"
#include "fakes/verbs/fake_verbs.h"
#include "fakes/verbs/rdma_hosts.h"
#include "fakes/world.h"
#include "transports/rdma/rdma_transport.h"

namespace dlslime::testing {

// Two hosts with a NIC each.
class RdmaTest : public ::testing::Test {
 protected:
  RdmaTest() {
    for (const int end : {0, 1}) {
      ends_[end] = std::make_unique<Endpoint>(
          Outbound::Limits{16 * 1024, 4 * 1024 * 1024});
      groups_[end] = ends_[end]->join(end, 2);
    }
  }
  void tearDown() {
    for (const int end : {0, 1}) {
      groups_[end].reset();
      ends_[end].reset();
    }
    for (auto& transport : transports_) {
      transport.reset();
    }
  }
  void connect() {
    for (const int end : {0, 1}) {
      RdmaConfig config;
      config.nics = end == 0 ? "left" : "right";
      transports_[end] = std::make_unique<rdma::RdmaTransport>(config);
    }
    Transport::Context context;
    context.nonce = "n";
    Offer answer;
    Offer offer = transports_[0]->offer(context);
    auto second = transports_[1]->accept(context, std::move(offer), answer);
    auto first = transports_[0]->finish(context, std::move(answer));
    ends_[0]->connect(std::move(first));
    ends_[1]->connect(std::move(second));
    for (const int end : {0, 1}) {
      ends_[end]->reach(
          *groups_[end],
          1 - end,
          ends_[end]->channels[0],
          groups_[1 - end]->id());
    }
  }
  // Polls until nothing happens for a while. Limited, since poll() of a broken
  // connection always returns true.
  void settle() {
    for (int quiet = 0, i = 0; quiet < 20 && i < 100000; ++i) {
      const bool first = ends_[0]->poll();
      const bool second = ends_[1]->poll();
      quiet = first || second ? 0 : quiet + 1;
    }
  }
  GuardedPtr send(int from, size_t size, uint32_t tag = 0) {
    auto operation = GuardedOperation::send(
        1 - from, tag, pattern(size, static_cast<unsigned>(size + tag)));
    ends_[from]->send(*groups_[from], operation);
    return operation;
  }
  GuardedPtr receive(int at, size_t size, uint32_t tag = 0) {
    auto operation = GuardedOperation::receive(1 - at, tag, size);
    ends_[at]->receive(*groups_[at], operation);
    return operation;
  }
  // Sends more messages at once than the ring has room for.
  std::vector<GuardedPtr> flood(int count) {
    connect();
    settle();
    std::vector<GuardedPtr> sends;
    for (int i = 0; i < count; ++i) {
      sends.push_back(send(0, 8));
    }
    return sends;
  }
  // Tells both ends that the peer has ended.
  void end() {
    for (const int i : {0, 1}) {
      channel(i).peerClosed(
          Status(ErrorCode::kPeerFailed, "its process has ended"));
      ends_[i]->settle();
    }
    settle();
  }
  PeerChannel& channel(int end) {
    return *ends_[end]->channels[0];
  }

  static FakeDevice named(const char* name, uint8_t address) {
    FakeDevice device;
    device.name = name;
    device.ports[0].gids[0].value = ipv4Gid(10, 9, 0, address);
    return device;
  }
  LogCapture log;
  AuditedFabric fabric{{named("left", 1), named("right", 2)}};
  std::unique_ptr<rdma::RdmaTransport> transports_[2];
  std::unique_ptr<Endpoint> ends_[2];
  std::shared_ptr<Group> groups_[2];
};

} // namespace dlslime::testing
