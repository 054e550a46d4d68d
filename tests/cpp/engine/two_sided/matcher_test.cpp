#include "engine/two_sided/matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "fakes/world.h"

namespace dlslime {
namespace {

using testing::makeReceive;

constexpr int kAny = Operation::kAnySource;

// The rule in its simplest form: both lists in order of arrival; a message
// takes the first receive that accepts it, and vice versa.
class Model {
 public:
  struct Message {
    int source;
    uint32_t tag;
    uint64_t id;
    bool announced;
  };
  static bool accepts(const Operation& receive, int source, uint32_t tag) {
    return receive.tag() == tag &&
        (receive.peer() == kAny || receive.peer() == source);
  }
  OperationPtr takeReceive(int source, uint32_t tag) {
    const auto found =
        std::find_if(receives.begin(), receives.end(), [&](const auto& each) {
          return accepts(*each, source, tag);
        });
    if (found == receives.end()) {
      return nullptr;
    }
    auto receive = *found;
    receives.erase(found);
    return receive;
  }
  std::optional<Message> takeMessage(const Operation& receive) {
    const auto found =
        std::find_if(messages.begin(), messages.end(), [&](const auto& each) {
          return accepts(receive, each.source, each.tag);
        });
    if (found == messages.end()) {
      return std::nullopt;
    }
    const Message message = *found;
    messages.erase(found);
    return message;
  }

  std::vector<OperationPtr> receives;
  std::vector<Message> messages;
};

Arrival arrivalOf(const Model::Message& message, const Inbound* from) {
  Arrival arrival;
  arrival.source = message.source;
  arrival.tag = message.tag;
  arrival.id = message.id;
  arrival.announced = message.announced;
  arrival.from = from;
  return arrival;
}

class MatcherRandom : public ::testing::TestWithParam<unsigned> {
 protected:
  static constexpr int kRanks = 4;

  uint32_t someTag() {
    // Mostly few tags, so that messages meet receives; sometimes a tag used
    // once.
    return random() % 50 == 0 ? static_cast<uint32_t>(1000 + random() % 100000)
                              : static_cast<uint32_t>(random() % 4);
  }
  int someSource() {
    return static_cast<int>(random() % kRanks);
  }
  void message() {
    const Model::Message message{
        someSource(), someTag(), ++nextId, random() % 2 == 0};
    const auto expected = model.takeReceive(message.source, message.tag);
    const auto actual = matcher.takeReceive(message.source, message.tag);
    ASSERT_EQ(actual, expected);
    if (!actual) {
      matcher.addArrival(arrivalOf(message, from(message.source)));
      model.messages.push_back(message);
    }
  }
  void receive() {
    const int source = random() % 4 == 0 ? kAny : someSource();
    const auto receive = makeReceive(source, someTag(), 0);
    const auto expected = model.takeMessage(*receive);
    const auto actual = matcher.takeArrival(*receive);
    ASSERT_EQ(actual.has_value(), expected.has_value());
    if (actual) {
      ASSERT_EQ(actual->id, expected->id);
      ASSERT_EQ(actual->source, expected->source);
      return;
    }
    matcher.addReceive(receive);
    model.receives.push_back(receive);
  }
  void removeSomeReceive() {
    const auto stranger = makeReceive(someSource(), someTag(), 0);
    ASSERT_FALSE(matcher.removeReceive(*stranger));
    if (!model.receives.empty()) {
      const auto victim = model.receives.begin() +
          static_cast<long>(random() % model.receives.size());
      ASSERT_TRUE(matcher.removeReceive(**victim));
      ASSERT_FALSE(matcher.removeReceive(**victim));
      model.receives.erase(victim);
    }
  }
  void revokeSomeMessage() {
    if (model.messages.empty()) {
      return;
    }
    const auto victim = model.messages.begin() +
        static_cast<long>(random() % model.messages.size());
    ASSERT_FALSE(matcher.removeArrival(
        victim->source, victim->tag, from(kRanks), victim->id));
    ASSERT_EQ(
        matcher.removeArrival(
            victim->source, victim->tag, from(victim->source), victim->id),
        victim->announced);
    if (victim->announced) {
      model.messages.erase(victim);
    }
  }
  void loseAPeer() {
    const int source = someSource();
    auto taken = matcher.takeReceivesFrom(source);
    size_t count = 0;
    while (const auto receive = taken.pop()) {
      ASSERT_EQ(receive->peer(), source);
      ++count;
    }
    ASSERT_EQ(count, std::erase_if(model.receives, [&](const auto& each) {
                return each->peer() == source;
              }));
    matcher.removeAnnounced(from(source));
    std::erase_if(model.messages, [&](const auto& each) {
      return each.announced && each.source == source;
    });
  }
  void step() {
    const auto dice = random() % 1000;
    if (dice < 470) {
      message();
    } else if (dice < 940) {
      receive();
    } else if (dice < 970) {
      removeSomeReceive();
    } else if (dice < 998) {
      revokeSomeMessage();
    } else {
      loseAPeer();
    }
  }

  std::mt19937 random{GetParam()};
  Matcher matcher{kRanks};
  Model model;
  // A key to compare, never dereferenced.
  const Inbound* from(int source) const {
    return reinterpret_cast<const Inbound*>(&inbounds[source]);
  }
  int inbounds[kRanks + 1] = {}; // the last has sent nothing
  uint64_t nextId = 0;
};

TEST_P(MatcherRandom, AgreesWithTheModelInEveryStep) {
  for (int i = 0; i < 60000 && !HasFatalFailure(); ++i) {
    step();
    ASSERT_EQ(matcher.arrivals(), model.messages.size());
  }
  EXPECT_EQ(matcher.posted().size(), model.receives.size());
  EXPECT_EQ(matcher.takeArrivals().size(), model.messages.size());
  EXPECT_EQ(matcher.arrivals(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, MatcherRandom, ::testing::Range(1U, 6U));

TEST(MatcherTest, OlderReceiveWinsWhetherDirectedOrNot) {
  Matcher matcher(2);
  const auto any = makeReceive(kAny, 1, 0);
  const auto directed = makeReceive(1, 1, 0);
  matcher.addReceive(any);
  matcher.addReceive(directed);
  EXPECT_EQ(matcher.takeReceive(1, 1), any);
  EXPECT_EQ(matcher.takeReceive(1, 1), directed);
  matcher.addReceive(directed);
  matcher.addReceive(any);
  EXPECT_EQ(matcher.takeReceive(1, 1), directed);
  EXPECT_EQ(matcher.takeReceive(0, 1), any);
}

TEST(MatcherTest, AnySourceTakesTheOldestMessageOfItsTag) {
  Matcher matcher(3);
  for (const int source : {2, 0, 1}) {
    matcher.addArrival(
        arrivalOf({source, 5, static_cast<uint64_t>(source), false}, nullptr));
  }
  const auto any = makeReceive(kAny, 5, 0);
  EXPECT_EQ(matcher.takeArrival(*any)->source, 2);
  EXPECT_EQ(matcher.takeArrival(*any)->source, 0);
  EXPECT_EQ(matcher.takeArrival(*any)->source, 1);
  EXPECT_FALSE(matcher.takeArrival(*any));
}

TEST(MatcherTest, TagsOfThirtyOneBitsDoNotMeetEachOther) {
  Matcher matcher(2);
  const auto receive = makeReceive(1, 0x7fffffff, 0);
  matcher.addReceive(receive);
  EXPECT_EQ(matcher.takeReceive(1, 0x7ffffffe), nullptr);
  EXPECT_EQ(matcher.takeReceive(0, 0x7fffffff), nullptr);
  EXPECT_EQ(matcher.takeReceive(1, 0x7fffffff), receive);
}

TEST(MatcherTest, HundredThousandTagsUsedOnceAndThousandsInUseStayRight) {
  Matcher matcher(2);
  std::vector<OperationPtr> kept;
  for (uint32_t tag = 0; tag < 100000; ++tag) {
    const auto receive = makeReceive(1, tag, 0);
    matcher.addReceive(receive);
    if (tag % 20 == 0) {
      kept.push_back(receive);
    } else {
      ASSERT_EQ(matcher.takeReceive(1, tag), receive);
    }
  }
  EXPECT_EQ(matcher.posted().size(), kept.size());
  for (const auto& receive : kept) {
    ASSERT_EQ(matcher.takeReceive(1, receive->tag()), receive);
  }
}

TEST(MatcherTest, DroppedMatcherLetsGoOfItsReceives) {
  const auto receive = makeReceive(1, 1, 0);
  const auto any = makeReceive(kAny, 1, 0);
  {
    Matcher matcher(2);
    matcher.addReceive(receive);
    matcher.addReceive(any);
  }
  EXPECT_EQ(receive.use_count(), 1);
  EXPECT_EQ(any.use_count(), 1);
}

} // namespace
} // namespace dlslime
