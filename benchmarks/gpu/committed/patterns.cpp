// Actions of programs between messages while the streams wait: each pattern
// must end.
#include <array>
#include <functional>

#include "committed/program.h"

namespace committed {

namespace {

constexpr uint32_t kRounds = 4;
constexpr double kBusyMs = 20; // longer than loading a module takes

// Places of a round's bytes; a stream computes the bytes to send late.
constexpr uint32_t kSource = 0;
constexpr uint32_t kOut = 1 << 20;
constexpr uint32_t kIn = 2 << 20;
constexpr uint32_t kResult = 3 << 20;

using Action = std::function<void(Stream)>;

struct Order {
  bool sendIsPostedFirst = true;
  bool sendIsWaitedFirst = false;
};

uint8_t valueOf(int rank, uint32_t round) {
  return static_cast<uint8_t>(1 + rank + 2 * round);
}

// Sends and receives at both ranks at once, behind a kernel that runs for a
// while. `action` runs while the stream still waits for the peer's message;
// `held` counts the rounds in which the stream did wait.
void exchange(
    Rank& rank,
    const Spinner& spinner,
    Stream stream,
    uint32_t round,
    Order order,
    const Action& action,
    double& held) {
  fill(rank, kSource, kMessage, valueOf(rank.number, round));
  spinner.spin(stream, rank.addressOf(rank.mine().posted), kBusyMs);
  CALL(copy, rank.memory() + kOut, rank.memory() + kSource, kMessage, stream);
  uint32_t sent = 0;
  uint32_t received = 0;
  if (order.sendIsPostedFirst) {
    sent = rank.send(stream, kOut, kMessage);
  }
  received = rank.receive(stream, kIn);
  if (!order.sendIsPostedFirst) {
    sent = rank.send(stream, kOut, kMessage);
  }
  if (order.sendIsWaitedFirst) {
    rank.waitSent(sent, stream);
  }
  rank.waitReceived(received, stream);
  held += rank.isHeld(received) ? 1 : 0;
  action(stream);
  if (!order.sendIsWaitedFirst) {
    rank.waitSent(sent, stream);
  }
  CALL(copy, rank.memory() + kResult, rank.memory() + kIn, kMessage, stream);
  settle(stream);
  verify(rank, kResult, kMessage, valueOf(1 - rank.number, round));
  rank.barrier();
}

void rounds(
    Rank& rank,
    Shared& shared,
    const std::string& ptx,
    Order order,
    const Action& action) {
  const Spinner spinner(ptx);
  const Stream stream = makeStream();
  double& held = shared.times[rank.number][0];
  for (uint32_t round = 0; round < kRounds; ++round) {
    exchange(rank, spinner, stream, round, order, action, held);
  }
}

void nothing(Stream /*stream*/) {}

void sendFirst(Rank& rank, Shared& shared, const std::string& ptx) {
  rounds(rank, shared, ptx, {true, true}, nothing);
}

void receiveFirst(Rank& rank, Shared& shared, const std::string& ptx) {
  rounds(rank, shared, ptx, {false, false}, nothing);
}

// Rank 1 waits for its send first, rank 0 for its receive.
void crossed(Rank& rank, Shared& shared, const std::string& ptx) {
  rounds(rank, shared, ptx, {rank.number == 0, rank.number == 1}, nothing);
}

// Loads a module while the stream waits, and launches its kernel.
void lateLoad(Rank& rank, Shared& shared, const std::string& ptx) {
  rounds(rank, shared, ptx, {}, [&](Stream stream) {
    const Spinner late(ptx);
    late.spin(stream, rank.addressOf(rank.mine().posted), 0.1);
  });
}

void fullQueue(Rank& rank, Shared& shared, const std::string& ptx) {
  rounds(rank, shared, ptx, {}, [&](Stream stream) {
    constexpr int kLaunches = 3000;
    for (int i = 0; i < kLaunches; ++i) {
      CALL(copy, rank.memory() + kResult, rank.memory() + kIn, 64, stream);
    }
  });
}

void freeMemory(Rank& rank, Shared& shared, const std::string& ptx) {
  rounds(rank, shared, ptx, {}, [](Stream /*stream*/) {
    DevicePointer made = 0;
    CALL(allocate, &made, kMessage);
    CALL(free, made);
  });
}

void pageable(Rank& rank, Shared& shared, const std::string& ptx) {
  rounds(rank, shared, ptx, {}, [&](Stream stream) {
    std::array<char, 64> here{};
    CALL(
        copy,
        reinterpret_cast<DevicePointer>(here.data()),
        rank.memory() + kIn,
        here.size(),
        stream);
  });
}

// Uses more streams than hardware queues, each with a message both ways.
void manyStreams(Rank& rank, Shared& /*shared*/, const std::string& ptx) {
  constexpr uint32_t kStreams = 40;
  constexpr uint32_t kSize = 64 << 10;
  const Spinner spinner(ptx);
  const auto at = [](uint32_t base, uint32_t i) { return base + i * kSize; };
  constexpr uint32_t kFrom = 8 << 20;
  constexpr uint32_t kTo = 16 << 20;
  std::vector<Stream> streams;
  std::vector<uint32_t> sent, received;
  for (uint32_t i = 0; i < kStreams; ++i) {
    streams.push_back(makeStream());
    fill(rank, at(kFrom, i), kSize, valueOf(rank.number, i));
    spinner.spin(streams[i], rank.addressOf(rank.mine().posted), 1);
    sent.push_back(rank.send(streams[i], at(kFrom, i), kSize));
    received.push_back(rank.receive(streams[i], at(kTo, i)));
  }
  for (uint32_t i = kStreams; i-- > 0;) { // last stream first
    rank.waitReceived(received[i], streams[i]);
    rank.waitSent(sent[i], streams[i]);
  }
  for (uint32_t i = 0; i < kStreams; ++i) {
    settle(streams[i]);
    verify(rank, at(kTo, i), kSize, valueOf(1 - rank.number, i));
  }
}

// Sends a message forward and a message backward, waiting at once for each, as
// pipelines do.
void pipeline(Rank& rank, Shared& /*shared*/, const std::string& ptx) {
  constexpr uint32_t kBatches = 24;
  const Spinner spinner(ptx);
  const Stream stream = makeStream();
  fill(rank, kOut, kMessage, valueOf(rank.number, 0));
  for (uint32_t i = 0; i < kBatches; ++i) {
    spinner.spin(stream, rank.addressOf(rank.mine().posted), 0.3);
    if (rank.number == 0) {
      rank.waitSent(rank.send(stream, kOut, kMessage), stream);
      rank.waitReceived(rank.receive(stream, kIn), stream);
    } else {
      rank.waitReceived(rank.receive(stream, kIn), stream);
      rank.waitSent(rank.send(stream, kOut, kMessage), stream);
    }
  }
  settle(stream);
  verify(rank, kIn, kMessage, valueOf(1 - rank.number, 0));
}

} // namespace

const std::vector<Program>& patterns() {
  static const std::vector<Program> all{
      {"send_first", {"rounds_held"}, &sendFirst},
      {"receive_first", {"rounds_held"}, &receiveFirst},
      {"crossed", {"rounds_held"}, &crossed},
      {"late_load", {"rounds_held"}, &lateLoad},
      {"full_queue", {"rounds_held"}, &fullQueue},
      {"free", {"rounds_held"}, &freeMemory},
      {"pageable", {"rounds_held"}, &pageable},
      {"many_streams", {}, &manyStreams},
      {"pipeline", {}, &pipeline}};
  return all;
}

} // namespace committed
