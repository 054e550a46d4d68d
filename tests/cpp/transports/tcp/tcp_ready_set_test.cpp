// Which of many sockets have news.
#include "transports/tcp/ready_set.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "base/status.h"
#include "fakes/peers/stream_sockets.h"
#include "fakes/world.h"

namespace dlslime::tcp {
namespace {

using namespace ::dlslime::testing;

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

// A socket watched by the set, and the peer's end.
struct Watched {
  Watched(ReadySet& set, SocketEnds both)
      : ready(set), ends(std::move(both)), news(ready.add(ends[0].get())) {}
  ~Watched() {
    ready.remove(ends[0].get());
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  void write() {
    EXPECT_EQ(writeRaw(ends[1].get(), pattern(10)), 10U);
  }

  ReadySet& ready;
  SocketEnds ends;
  ReadySet::News news;
};

class ReadySetTest : public ::testing::Test {
 protected:
  Watched& watch(SocketEnds ends = tcpEnds()) {
    return *all.emplace_back(std::make_unique<Watched>(ready, std::move(ends)));
  }
  // Takes all news.
  void settle() {
    while (readable(ready.fd())) {
      ready.lookNow();
    }
    for (const auto& each : all) {
      *each->news = false;
    }
  }
  // Waits for news, since bytes over TCP take a moment.
  bool hears(Watched& watched) {
    return eventually([&] {
      ready.look();
      return watched.news->load();
    });
  }

  ReadySet ready;
  std::vector<std::unique_ptr<Watched>> all;
};

TEST_F(ReadySetTest, NewSocketIsWorthALook) {
  EXPECT_FALSE(readable(ready.fd()));
  EXPECT_TRUE(*watch().news);
}

TEST_F(ReadySetTest, NewsIsToldOnceForEachChange) {
  auto& watched = watch();
  settle();
  watched.write();
  EXPECT_TRUE(hears(watched));
  *watched.news = false;
  ready.lookNow();
  EXPECT_FALSE(*watched.news) << "the same bytes, still unread";
  EXPECT_FALSE(readable(ready.fd())) << "they wake no thread";
  watched.write();
  EXPECT_TRUE(hears(watched));
}

TEST_F(ReadySetTest, QuietSocketIsNotTold) {
  auto &noisy = watch(), &quiet = watch();
  settle();
  noisy.write();
  EXPECT_TRUE(hears(noisy));
  EXPECT_FALSE(*quiet.news);
}

TEST_F(ReadySetTest, RoomIsNews) {
  auto& watched = watch(tcpEnds(4096));
  while (writeRaw(watched.ends[0].get(), pattern(1000)) > 0) {
  }
  settle();
  EXPECT_TRUE(eventually([&] {
    readRaw(watched.ends[1].get());
    ready.lookNow();
    return watched.news->load();
  }));
}

TEST_F(ReadySetTest, EndOfThePeerIsNews) {
  for (const bool tcp : {true, false}) {
    auto& watched = watch(tcp ? tcpEnds() : unixEnds());
    settle();
    watched.ends[1].reset();
    EXPECT_TRUE(hears(watched));
  }
}

TEST_F(ReadySetTest, WakeIsReadableUntilALook) {
  settle();
  std::thread other([&] { ready.wake(); });
  other.join();
  ready.wake();
  EXPECT_TRUE(readable(ready.fd()));
  ready.lookNow();
  EXPECT_FALSE(readable(ready.fd()));
}

// A thread looks before sleeping, and looks again only when woken.
TEST_F(ReadySetTest, WhatOthersTakeWakesTheThreadThatSleeps) {
  auto& watched = watch();
  settle();
  ready.beginSleep();
  EXPECT_FALSE(readable(ready.fd()));
  watched.write();
  EXPECT_TRUE(hears(watched));
  EXPECT_TRUE(readable(ready.fd()));
  ready.lookNow();
  EXPECT_TRUE(readable(ready.fd())) << "others look again";
  ready.endSleep();
  ready.lookNow();
  EXPECT_FALSE(readable(ready.fd()));
  ready.beginSleep();
  ready.wake();
  ready.lookNow();
  EXPECT_TRUE(readable(ready.fd())) << "a socket that is there, too";
  ready.endSleep();
}

TEST_F(ReadySetTest, RemovedSocketIsNotTold) {
  auto& watched = watch();
  settle();
  ready.remove(watched.ends[0].get());
  watched.write();
  ASSERT_TRUE(eventually([&] { return readable(watched.ends[0].get()); }));
  EXPECT_FALSE(readable(ready.fd()));
  ready.lookNow();
  EXPECT_FALSE(*watched.news);
}

// More sockets than a single look reports.
TEST_F(ReadySetTest, EachOfManySocketsIsTold) {
  for (int i = 0; i < 200; ++i) {
    watch(unixEnds());
  }
  settle();
  for (const auto& each : all) {
    each->write();
  }
  for (int i = 0; i < 4; ++i) {
    ready.lookNow();
  }
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(*all[i]->news) << i;
  }
  EXPECT_FALSE(readable(ready.fd()));
}

TEST_F(ReadySetTest, WhatCannotBeWatchedIsRefused) {
  EXPECT_THROW(ready.add(-1), Error);
  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_THROW(ready.add(file.get()), Error);
  auto& watched = watch();
  settle();
  watched.write();
  EXPECT_TRUE(hears(watched));
}

TEST_F(ReadySetTest, ThreadsMayUseItAtOnce) {
  constexpr int kRounds = 300;
  std::atomic<bool> over{false};
  std::thread looking([&] {
    while (!over) {
      ready.look();
    }
  });
  std::thread waking([&] {
    while (!over) {
      ready.wake();
      std::this_thread::sleep_for(microseconds(50));
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    Watched watched(ready, unixEnds());
    *watched.news = false;
    watched.write();
    EXPECT_TRUE(eventually([&] { return watched.news->load(); }));
  }
  over = true;
  looking.join();
  waking.join();
}

} // namespace
} // namespace dlslime::tcp
