#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "fakes/peers/test_transfer.h"
#include "fakes/world.h"

namespace dlslime::testing {

// A rank with registered memory, for tests of one-sided transfers.
struct OneSided {
  OneSided(Node& at, size_t size, unsigned seed)
      : node(at), memory(pattern(size, seed)) {
    region = node.engine->registerMemory(
        {memory.data(), memory.size()},
        "memory " + std::to_string(seed),
        nullptr);
  }
  TestTransferPtr
  read(int peer, const OneSided& from, const TestTransfer::Pieces& pieces) {
    return post(
        TestTransfer::readFrom(peer, region, from.region->handle(), pieces));
  }
  TestTransferPtr
  write(int peer, const OneSided& to, const TestTransfer::Pieces& pieces) {
    return post(
        TestTransfer::writeTo(peer, region, to.region->handle(), pieces));
  }
  TestTransferPtr post(TestTransferPtr transfer) {
    node.engine->transfer(*node.group, transfer);
    return transfer;
  }
  bool wait(const Operation& operation) {
    return node.engine->wait(operation, deadlineAfter(milliseconds(30000)));
  }
  // Waits; succeeds if the transfer ended well.
  ::testing::AssertionResult done(const TestTransferPtr& transfer) {
    if (!wait(*transfer)) {
      return ::testing::AssertionFailure()
          << transfer->describe() << " does not end";
    }
    return transfer->status().ok()
        ? ::testing::AssertionSuccess()
        : ::testing::AssertionFailure() << transfer->status().message();
  }
  bool same(const OneSided& other, size_t at, size_t there, size_t size) const {
    return std::memcmp(memory.data() + at, other.memory.data() + there, size) ==
        0;
  }
  void deregister(int most = 10000) {
    node.engine->deregister(region, deadlineAfter(milliseconds(most)));
  }

  Node& node;
  Bytes memory;
  RegionPtr region;
};

} // namespace dlslime::testing
