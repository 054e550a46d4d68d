// Memory is registered without the engine's lock, whenever the operation was
// posted.
#include <algorithm>
#include <future>
#include <map>

#include "fakes/owned_memory.h"
#include "fakes/verbs/rdma_pair.h"

namespace dlslime::testing {
namespace {

using Kind = Operation::Kind;
using OwnedPtr = std::shared_ptr<OwnedOperation>;
// A size different from a ring's, and too small to be registered by all NICs.
constexpr size_t kSize = 512 * 1024;

// Two hosts with two NICs each; rank 0 sends, rank 1 receives.
class RdmaPreparing : public RdmaPair {
 protected:
  RdmaPreparing() : RdmaPair(twoNetworks()) {
    world.emplace(
        2,
        [](int rank) {
          auto config = rdmaHost(rank);
          config.rdma.nics = rank == 0 ? "nic0a,nic0b" : "nic1b,nic1a";
          config.patience = milliseconds(5000);
          return config;
        },
        byRdmaAlone);
    fabric.onRegistration([this](size_t bytes) {
      if (bytes == kSize) {
        ++registrations;
        locked += locksAreFree() ? 0 : 1;
      }
    });
  }
  ~RdmaPreparing() override {
    world.reset(); // ends the threads that call the functions above
  }
  // Returns whether both engines answer calls that take their locks.
  bool locksAreFree() {
    const std::lock_guard<std::mutex> guard(mutex);
    const auto from = asked.size();
    for (const int rank : {0, 1}) {
      asked.push_back(std::async(std::launch::async, [this, rank] {
        (*world)[rank].engine->report(*(*world)[rank].group);
      }));
    }
    return std::all_of(
        asked.begin() + static_cast<std::ptrdiff_t>(from),
        asked.end(),
        [](auto& answer) {
          return answer.wait_for(milliseconds(30000)) ==
              std::future_status::ready;
        });
  }
  OwnedPtr make(Kind kind, int peer) {
    auto memory = std::make_shared<OwnedMemory>(kSize);
    const auto bytes = kind == Kind::kSend ? pattern(kSize) : Bytes(kSize);
    std::copy(bytes.begin(), bytes.end(), memory->view().data);
    auto operation = std::make_shared<OwnedOperation>(kind, peer, 7, memory);
    memories[operation.get()] = std::move(memory);
    return operation;
  }
  OwnedPtr send() {
    auto operation = make(Kind::kSend, 1);
    (*world)[0].engine->send(*(*world)[0].group, operation);
    return operation;
  }
  OwnedPtr receive(int from = 0) {
    auto operation = make(Kind::kReceive, from);
    (*world)[1].engine->receive(*(*world)[1].group, operation);
    return operation;
  }
  void expectArrives(const OwnedPtr& sent, const OwnedPtr& received) {
    for (const int rank : {0, 1}) {
      const auto& operation = rank == 0 ? sent : received;
      ASSERT_TRUE((*world)[rank].engine->wait(
          *operation, deadlineAfter(milliseconds(60000))));
      ASSERT_TRUE(operation->status().ok()) << operation->status().message();
    }
    const auto bytes = pattern(kSize);
    const auto view = memories.at(received.get())->view();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), view.data));
    EXPECT_EQ(received->bytes(), kSize);
  }

  std::mutex mutex;
  std::vector<std::future<void>> asked; // guarded by mutex
  std::atomic<int> registrations{0}, locked{0};
  std::map<const Operation*, std::shared_ptr<OwnedMemory>> memories;
};

TEST_F(RdmaPreparing, WhatWasPostedBeforeTheConnection) {
  const auto received = receive();
  expectArrives(send(), received);
  EXPECT_EQ(registrations, 2);
  EXPECT_EQ(locked, 0);
}

TEST_F(RdmaPreparing, WhatWasPostedBeforeTheConnectionForAnySource) {
  const auto received = receive(Operation::kAnySource);
  expectArrives(send(), received);
  EXPECT_EQ(registrations, 2);
  EXPECT_EQ(locked, 0);
}

TEST_F(RdmaPreparing, WhatWasPostedWhileTheFirstWasRegistered) {
  std::vector<OwnedPtr> sent, received;
  for (int i = 0; i < 20; ++i) {
    received.push_back(receive());
    sent.push_back(send());
  }
  for (size_t i = 0; i < sent.size(); ++i) {
    expectArrives(sent[i], received[i]);
  }
  EXPECT_EQ(registrations, 40);
  EXPECT_EQ(locked, 0);
}

// Posted faster than the wire-up thread could register: the posting thread
// registers instead.
TEST_F(RdmaPreparing, WhatIsPostedAllTheTimeKeepsNoPeerWaiting) {
  constexpr size_t kLess = 160 * 1024;
  constexpr int kMost = 5000;
  std::atomic<int> posted{0};
  std::atomic<bool> begun{false}, over{false};
  fabric.onRegistration([&](size_t bytes) {
    if (bytes == kLess) {
      begun = true;
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  std::thread other([&] {
    for (; !over && posted < kMost; ++posted) {
      (*world)[1].engine->receive(
          *(*world)[1].group,
          std::make_shared<OwnedOperation>(
              Kind::kReceive, 0, 8, std::make_shared<OwnedMemory>(kLess)));
      std::this_thread::sleep_for(microseconds(begun ? 100 : 5000));
    }
  });
  const auto received = receive();
  expectArrives(send(), received);
  EXPECT_LT(posted, kMost);
  over = true;
  other.join();
}

TEST_F(RdmaPreparing, WhatWasUnderWayWhenTheConnectionWasReplaced) {
  ASSERT_TRUE(world->passes(0, 1));
  const auto sent = send();
  ASSERT_TRUE(
      eventually([&] { return report(0).counters.rendezvousMessages == 1; }));
  const auto first = registrations.load();
  // The message was registered with the NIC of the first rail.
  const auto used = devices(0).substr(0, devices(0).find(':'));
  fabric.setPort(used, 0, IBV_PORT_DOWN);
  fabric.cut(used);
  const auto bothReplaced = [&] { return replaced(0) > 0 && replaced(1) > 0; };
  ASSERT_TRUE(eventually(bothReplaced)) << log.all();
  const auto received = receive();
  expectArrives(sent, received);
  EXPECT_EQ(registrations, first + 2);
  EXPECT_EQ(locked, 0);
}

// cancel() does not wait for the registration; the registering thread releases
// the memory.
TEST_F(RdmaPreparing, WhatIsGivenUpMeanwhileKeepsItsMemory) {
  std::promise<void> begun, goOn;
  std::atomic<bool> first{true};
  fabric.onRegistration([&](size_t bytes) {
    if (bytes == kSize && first.exchange(false)) {
      begun.set_value();
      goOn.get_future().wait_for(std::chrono::seconds(20));
    }
  });
  const auto sent = send();
  const auto time = std::chrono::seconds(20);
  ASSERT_EQ(begun.get_future().wait_for(time), std::future_status::ready);
  auto& node = (*world)[0];
  const Status why(ErrorCode::kTimeout, "taken back");
  node.engine->cancel(*node.group, sent, why);
  EXPECT_TRUE(node.engine->wait(*sent, deadlineAfter(milliseconds(20000))));
  EXPECT_EQ(sent->status().code(), ErrorCode::kTimeout);
  EXPECT_FALSE(sent->released());
  node.engine->report(*node.group);
  goOn.set_value();
  EXPECT_TRUE(eventually([&] { return sent->released(); }));
  EXPECT_TRUE(world->passes(0, 1));
}

} // namespace
} // namespace dlslime::testing
