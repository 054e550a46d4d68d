#include "base/memory/guarded_copy.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/memory/segment.h"
#include "fakes/harmed_pages.h"
#include "fakes/world.h"
#include "interface/transport.h"
#include "transports/shm/cma.h"

namespace dlslime {
namespace {

using namespace ::dlslime::testing;

// A kind of damage to the last page, and the faults expected.
struct Case {
  const char* name;
  void (*harm)(const Pages& pages);
  Fault ofReading;
  Fault ofWriting;
};
const Case kCases[] = {
    {"read-only",
     [](const Pages& pages) { pages.protectLast(PROT_READ); },
     Fault::kNone,
     Fault::kReadOnly},
    {"protected",
     [](const Pages& pages) { pages.protectLast(PROT_NONE); },
     Fault::kGone,
     Fault::kGone},
    {"cut",
     [](const Pages& pages) { pages.cutLast(); },
     Fault::kGone,
     Fault::kGone},
};

TEST(GuardedCopy, AnySizeIsReadAndWritten) {
  for (const size_t size :
       {0UL, 1UL, 8UL, 4097UL, 65536UL, 65537UL, 300001UL}) {
    const Bytes source = pattern(size);
    const auto read = readGuarded(source.data(), size);
    ASSERT_EQ(read.fault, Fault::kNone);
    EXPECT_TRUE(std::ranges::equal(read.bytes, source)) << size;
    Bytes destination(size);
    ASSERT_EQ(writeGuarded(destination.data(), source), Fault::kNone);
    EXPECT_EQ(destination, source);
  }
}

TEST(GuardedCopy, FaultOfTheLastPageIsToldWithItsKind) {
  for (const auto& harmed : kCases) {
    for (const size_t count : {1UL, 40UL}) {
      const Pages pages(count);
      harmed.harm(pages);
      EXPECT_EQ(readGuarded(pages.data(), pages.size()).fault, harmed.ofReading)
          << harmed.name;
      EXPECT_EQ(
          writeGuarded(pages.data(), pattern(pages.size())), harmed.ofWriting)
          << harmed.name;
    }
  }
}

TEST(GuardedCopy, ManyPiecesAreGatheredAndScattered) {
  const Bytes source = pattern(900 * 100 + 70000);
  std::vector<ByteSpan> pieces;
  for (size_t i = 0; i < 900; ++i) {
    pieces.push_back(ByteSpan(source).subspan(i * 100, 1 + i % 100));
  }
  pieces.push_back(ByteSpan(source).subspan(900 * 100, 70000));
  Bytes expected;
  for (const auto& piece : pieces) {
    expected.insert(expected.end(), piece.begin(), piece.end());
  }
  Bytes gathered(expected.size());
  ASSERT_EQ(gatherGuarded(pieces, gathered.data()), Fault::kNone);
  EXPECT_EQ(gathered, expected);

  Bytes destination(source.size());
  std::vector<std::span<std::byte>> places;
  for (const auto& piece : pieces) {
    places.push_back(
        {destination.data() + (piece.data() - source.data()), piece.size()});
  }
  ASSERT_EQ(scatterGuarded(gathered, places), Fault::kNone);
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(pieces[i], places[i])) << i;
  }
}

TEST(GuardedCopy, OnePieceOfManyThatFaultsIsTold) {
  for (const auto& harmed : kCases) {
    const Pages pages(2);
    harmed.harm(pages);
    Bytes good(300);
    std::vector<ByteSpan> pieces(300, ByteSpan(good).first(1));
    std::vector<std::span<std::byte>> places(300, std::span(good).first(1));
    pieces[290] = {pages.data() + kPage, 1};
    places[290] = {pages.data() + kPage, 1};
    Bytes bytes(300);
    EXPECT_EQ(gatherGuarded(pieces, bytes.data()), harmed.ofReading);
    EXPECT_EQ(scatterGuarded(bytes, places), harmed.ofWriting);
  }
}

TEST(GuardedCopy, MovesThatOverlapAreMoves) {
  const size_t size = 200000;
  for (const ptrdiff_t by : {-70000, -65536, -1, 0, 1, 4096, 65536, 70000}) {
    Bytes memory = pattern(size + 140000);
    const Bytes before = memory;
    auto* const from = memory.data() + 70000;
    const auto moved = moveGuarded(from + by, from, size);
    ASSERT_EQ(moved.ofSource, Fault::kNone);
    ASSERT_EQ(moved.ofDestination, Fault::kNone);
    EXPECT_TRUE(std::equal(from + by, from + by + size, before.data() + 70000))
        << by;
  }
}

TEST(GuardedCopy, MoveTellsWhichSideFaults) {
  const Pages good(20);
  for (const auto& harmed : kCases) {
    const Pages pages(20);
    harmed.harm(pages);
    EXPECT_EQ(
        moveGuarded(good.data(), pages.data(), pages.size()).ofSource,
        harmed.ofReading);
    const auto into = moveGuarded(pages.data(), good.data(), pages.size());
    EXPECT_EQ(into.ofSource, Fault::kNone);
    EXPECT_EQ(into.ofDestination, harmed.ofWriting);
  }
}

TEST(GuardedCopy, SmallPiecesAreMovedTogether) {
  const Bytes source = pattern(900 * 100);
  Bytes moved(source.size()), expected(source.size());
  std::vector<GuardedPiece> pieces;
  for (size_t i = 0; i < 900; ++i) {
    const size_t at = i * 100, size = i % 100;
    pieces.push_back({moved.data() + at, source.data() + at, size});
    std::copy_n(source.data() + at, size, expected.data() + at);
  }
  int calls = 0;
  for (size_t done = 0; done < pieces.size(); ++calls) {
    const size_t some = moveGuardedTogether(std::span(pieces).subspan(done));
    ASSERT_GT(some, 0U);
    done += some;
  }
  EXPECT_EQ(moved, expected);
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(moveGuardedTogether({pieces.data(), 1}), 0U);
  const GuardedPiece large[] = {
      {moved.data(), source.data(), 40000},
      {moved.data(), source.data(), 40000}};
  EXPECT_EQ(moveGuardedTogether(large), 0U);
}

TEST(GuardedCopy, PiecesThatFaultAreNotMovedTogether) {
  for (const auto& harmed : kCases) {
    const Pages pages(2);
    harmed.harm(pages);
    std::byte good{};
    auto* const last = pages.data() + kPage;
    const GuardedPiece from[] = {{&good, &good, 1}, {&good, last, 1}};
    const GuardedPiece to[] = {{&good, &good, 1}, {last, &good, 1}};
    const size_t readable = harmed.ofReading == Fault::kNone ? 2 : 0;
    EXPECT_EQ(moveGuardedTogether(from), readable) << harmed.name;
    EXPECT_EQ(moveGuardedTogether(to), 0U) << harmed.name;
  }
}

#ifndef __SANITIZE_ADDRESS__ // UBSan takes descriptors to look at objects
// Runs `body` in a thread that can open no descriptor.
void withoutDescriptors(const std::function<void()>& body) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::thread([&] {
    const rlimit none{0, before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    body();
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }).join();
}

TEST(GuardedCopy, NeedsNoDescriptor) {
  const Bytes source = pattern(300001);
  Bytes copied(source.size()), moved = source;
  const Pages harmed[] = {Pages(20), Pages(20), Pages(20)};
  for (size_t i = 0; i < std::size(kCases); ++i) {
    kCases[i].harm(harmed[i]);
  }
  withoutDescriptors([&] {
    const auto read = readGuarded(source.data(), source.size());
    EXPECT_EQ(read.fault, Fault::kNone);
    EXPECT_TRUE(std::ranges::equal(read.bytes, source));
    EXPECT_EQ(writeGuarded(copied.data(), source), Fault::kNone);
    moveGuarded(moved.data() + 1, moved.data(), moved.size() - 1);
    for (size_t i = 0; i < std::size(kCases); ++i) {
      const auto& [name, harm, ofReading, ofWriting] = kCases[i];
      auto* const data = harmed[i].data();
      const auto size = harmed[i].size();
      EXPECT_EQ(readGuarded(data, size).fault, ofReading) << name;
      EXPECT_EQ(writeGuarded(data, pattern(size)), ofWriting) << name;
      Bytes bytes(2);
      const ByteSpan pieces[] = {{data, 1}, {data + size - 1, 1}};
      const std::span<std::byte> places[] = {{data, 1}, {data + size - 1, 1}};
      EXPECT_EQ(gatherGuarded(pieces, bytes.data()), ofReading) << name;
      EXPECT_EQ(scatterGuarded(bytes, places), ofWriting) << name;
      const GuardedPiece two[] = {{data, data, 1}, {data, data, 1}};
      EXPECT_EQ(moveGuardedTogether(two), 0U) << name;
    }
  });
  EXPECT_EQ(copied, source);
  EXPECT_TRUE(std::equal(moved.begin() + 1, moved.end(), source.begin()));
}

TEST(GuardedCopy, GrowsInTheDescriptorThatItHas) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto open = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all)) - 1; // without the iterator
  };
  const Bytes source = pattern(300'000);
  std::thread([&] {
    EXPECT_EQ(readGuarded(source.data(), 8).fault, Fault::kNone);
    const auto held = open();
    const rlimit none{static_cast<rlim_t>(held), before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const auto read = readGuarded(source.data(), source.size());
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_TRUE(std::ranges::equal(read.bytes, source));
    EXPECT_EQ(open(), held);
  }).join();
}

TEST(GuardedCopy, DescriptorsThatComeBackAreUsed) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const Bytes source = pattern(100);
  const auto count = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  withoutDescriptors([&] {
    EXPECT_EQ(readGuarded(source.data(), 100).fault, Fault::kNone);
    setrlimit(RLIMIT_NOFILE, &before);
    const auto without = count();
    EXPECT_TRUE(
        std::ranges::equal(readGuarded(source.data(), 100).bytes, source));
    EXPECT_EQ(count(), without + 1);
  });
}
#endif

// A forked child shares the memory file of its parent, and must not use the
// file.
TEST(GuardedCopy, ForkedChildHasAScratchOfItsOwn) {
  const Bytes ours = pattern(1000, 1);
  const auto read = readGuarded(ours.data(), ours.size());
  const pid_t child = fork();
  if (child == 0) {
    const Bytes theirs = pattern(1000, 2);
    const auto other = readGuarded(theirs.data(), theirs.size());
    _exit(std::ranges::equal(other.bytes, theirs) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::ranges::equal(read.bytes, ours));
}

// The kernel copies between processes without telling which side faulted; the
// test's process stands for both sides.
TEST(CrossMemoryAttach, FaultIsToldWithItsSideAndKind) {
  const Pages good(20);
  for (const auto& harmed : kCases) {
    for (const bool write : {false, true}) {
      for (const bool local : {false, true}) {
        const Pages pages(20);
        harmed.harm(pages);
        CopyJob job;
        job.local = (local ? pages : good).data();
        job.remote = reinterpret_cast<uint64_t>((local ? good : pages).data());
        job.size = pages.size();
        job.pid = getpid();
        const auto run = write ? shm::writeToPeer : shm::readFromPeer;
        const auto told = copyFaultOf(run(job));
        const auto expected =
            write == local ? harmed.ofReading : harmed.ofWriting;
        EXPECT_EQ(told.fault, expected) << harmed.name << write << local;
        if (expected != Fault::kNone) {
          EXPECT_EQ(told.local, local) << harmed.name << write << local;
        }
        // The fault in one of many pieces.
        std::vector<Piece> pieces(300, {job.local, job.remote, 8});
        pieces[280].local += pages.size() - 8;
        pieces[280].remote += pages.size() - 8;
        job.pieces = pieces;
        EXPECT_EQ(copyFaultOf(run(job)).fault, expected) << harmed.name;
      }
    }
  }
}

TEST(CopyFaults, CodesOfPeersAreRead) {
  for (const int error : {0, 1, 14, 255, 4095}) {
    EXPECT_EQ(copyFaultOf(error).fault, Fault::kNone);
  }
  for (const auto fault : {Fault::kGone, Fault::kReadOnly, Fault::kNoScratch}) {
    for (const bool local : {false, true}) {
      const auto told = copyFaultOf(codeOf({local, fault}));
      EXPECT_EQ(told.fault, fault);
      EXPECT_EQ(told.local, local);
    }
  }
  EXPECT_EQ(copyFaultOf(-1).fault, Fault::kGone);
  EXPECT_EQ(copyFaultOf((1 << 16) | 77).fault, Fault::kGone);
}

} // namespace
} // namespace dlslime
