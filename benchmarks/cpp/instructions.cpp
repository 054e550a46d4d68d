// Operations of a rank with itself, for counting the instructions of the engine
// by callgrind. A rank alone waits for no other process, so that the counts are
// nearly the same in each run. instructions.py runs the program.
//
//   dlslime_instructions FOLDER send BYTES ROUNDS     an isend, an irecv, waits
//   dlslime_instructions FOLDER read PIECES ROUNDS    a read of 256 B pieces
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/engine.h"
#include "fakes/owned_memory.h"
#include "fakes/peers/file_rendezvous.h"
#include "fakes/peers/test_transfer.h"

namespace dlslime::testing {
namespace {

constexpr size_t kPieceBytes = 256;

class Rank {
 public:
  explicit Rank(const char* folder)
      : engine_(std::make_shared<Engine>(Config::fromEnvironment())) {
    GroupOptions options;
    options.name = "instructions";
    options.rendezvous = std::make_shared<FileRendezvous>(folder);
    group_ = engine_->join(std::move(options));
  }
  ~Rank() {
    engine_->leave(*group_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void sendAndReceive(
      const std::shared_ptr<OwnedMemory>& from,
      const std::shared_ptr<OwnedMemory>& to) {
    const auto receive =
        std::make_shared<OwnedOperation>(Operation::Kind::kReceive, 0, 0, to);
    engine_->receive(*group_, receive);
    const auto send =
        std::make_shared<OwnedOperation>(Operation::Kind::kSend, 0, 0, from);
    engine_->send(*group_, send);
    finish(*receive);
    finish(*send);
  }
  RegionPtr registerMemory(std::vector<std::byte>& memory, const char* name) {
    return engine_->registerMemory(
        {memory.data(), memory.size()}, name, nullptr);
  }
  void read(
      const RegionPtr& to,
      const RegionPtr& from,
      const TestTransfer::Pieces& pieces) {
    const auto transfer = TestTransfer::readFrom(0, to, from->handle(), pieces);
    engine_->transfer(*group_, transfer);
    finish(*transfer);
  }

 private:
  void finish(const Operation& operation) {
    const bool done = engine_->wait(operation, milliseconds(60000));
    if (!done || !operation.status().ok()) {
      const auto text = operation.status().message();
      std::fprintf(stderr, "%s\n", done ? text.c_str() : "it takes too long");
      std::exit(1);
    }
  }

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Group> group_;
};

// The function that callgrind counts (--toggle-collect).
template <typename Body>
[[gnu::noinline]] void countedRounds(int rounds, const Body& body) {
  for (int i = 0; i < rounds; ++i) {
    body();
  }
}

template <typename Body>
void warmThenCount(int rounds, const Body& body) {
  for (int i = 0; i < rounds / 10 + 10; ++i) {
    body();
  }
  countedRounds(rounds, body);
}

void countSends(Rank& rank, size_t bytes, int rounds) {
  const auto from = std::make_shared<OwnedMemory>(bytes);
  const auto to = std::make_shared<OwnedMemory>(bytes);
  warmThenCount(rounds, [&] { rank.sendAndReceive(from, to); });
}

// The pieces leave gaps, so that none are merged.
void countReads(Rank& rank, size_t count, int rounds) {
  std::vector<std::byte> from(2 * count * kPieceBytes), to(from.size());
  const auto source = rank.registerMemory(from, "source");
  const auto destination = rank.registerMemory(to, "destination");
  TestTransfer::Pieces pieces;
  for (size_t i = 0; i < count; ++i) {
    const auto at = static_cast<int64_t>(2 * i * kPieceBytes);
    pieces.push_back({at, at, static_cast<int64_t>(kPieceBytes)});
  }
  warmThenCount(rounds, [&] { rank.read(destination, source, pieces); });
}

} // namespace
} // namespace dlslime::testing

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "instructions FOLDER send|read AMOUNT ROUNDS\n");
    return 2;
  }
  dlslime::testing::Rank rank(argv[1]);
  const auto amount = static_cast<size_t>(std::atoll(argv[3]));
  const int rounds = std::atoi(argv[4]);
  if (std::strcmp(argv[2], "send") == 0) {
    dlslime::testing::countSends(rank, amount, rounds);
  } else {
    dlslime::testing::countReads(rank, amount, rounds);
  }
}
