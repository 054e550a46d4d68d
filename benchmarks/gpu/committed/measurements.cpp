// Costs of a message, in microseconds: the host's calls, and the stream.
#include <algorithm>
#include <chrono>

#include "committed/program.h"

namespace committed {

using namespace dlslime::cuda;

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMessages = 96; // under way at once; fewer than slots
constexpr uint32_t kIn = 48 << 20;

double microseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin)
      .count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename Call>
double medianOf(uint32_t count, const Call& call) {
  std::vector<double> times;
  for (uint32_t i = 0; i < count; ++i) {
    const auto begin = Clock::now();
    call(i);
    times.push_back(microseconds(begin));
  }
  return median(times);
}

double elapsedUs(Event begin, Event end) {
  float milliseconds = 0;
  CALL(eventElapsed, &milliseconds, begin, end);
  return static_cast<double>(milliseconds) * 1e3;
}

struct Mark {
  Mark() {
    CALL(eventCreate, &event, 0);
  }
  Event event = nullptr;
};

// Measures the host's part of each call, with the peer ahead, and a message's
// cost to the stream when everything awaited has happened.
void calls(Rank& rank, Shared& shared, const std::string& ptx) {
  const Spinner spinner(ptx);
  const Stream stream = makeStream();
  auto* const out = shared.times[rank.number];
  const Mark first, last;
  constexpr uint32_t kSize = 4 << 10;
  for (int round = 0; round < 2; ++round) { // the first round warms up
    std::vector<uint32_t> messages;
    if (rank.number == 0) {
      spinner.spin(stream, rank.addressOf(rank.mine().posted), 30);
      out[0] = medianOf(kMessages, [&](uint32_t i) {
        messages.push_back(rank.send(stream, i * kSize, kSize));
      });
      rank.barrier(); // all is posted
      rank.barrier(); // all is committed
      out[1] = medianOf(
          kMessages, [&](uint32_t i) { rank.waitSent(messages[i], stream); });
    } else {
      out[2] = medianOf(kMessages, [&](uint32_t i) {
        messages.push_back(rank.receive(stream, kIn + i * kSize));
      });
      rank.barrier();
      out[3] = medianOf(kMessages, [&](uint32_t i) {
        rank.waitReceived(messages[i], stream);
        if (i == 0) {
          CALL(eventRecord, first.event, stream);
        }
      });
      CALL(eventRecord, last.event, stream);
      rank.barrier();
    }
    settle(stream);
    if (rank.number == 1) {
      out[4] = elapsedUs(first.event, last.event) / (kMessages - 1);
    }
    rank.barrier();
  }
}

// Measures the copies alone, in one stream and without waits.
void plain(Rank& rank, Shared& shared, const std::string& ptx) {
  const Spinner spinner(ptx);
  const Stream stream = makeStream();
  const Mark first, last;
  constexpr uint32_t kSize = 4 << 10;
  for (int round = 0; round < 2 && rank.number == 1; ++round) {
    spinner.spin(stream, rank.addressOf(rank.mine().posted), 10);
    CALL(eventRecord, first.event, stream);
    for (uint32_t i = 0; i < kMessages; ++i) {
      CALL(
          copy,
          rank.memory() + kIn + i * kSize,
          rank.peerMemory() + i * kSize,
          kSize,
          stream);
    }
    CALL(eventRecord, last.event, stream);
    settle(stream);
    shared.times[1][0] = elapsedUs(first.event, last.event) / kMessages;
  }
  rank.barrier();
}

template <typename Send, typename Receive>
double oneWay(Rank& rank, Stream stream, const Send& send, const Receive& get) {
  constexpr uint32_t kTrips = 100; // twice as many messages fit the slots
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) {
    rank.barrier();
    const auto begin = Clock::now();
    for (uint32_t i = 0; i < kTrips; ++i) {
      if (rank.number == 0) {
        send();
        get();
      } else {
        get();
        send();
      }
      settle(stream);
    }
    times.push_back(microseconds(begin) / kTrips / 2);
  }
  return median(times);
}

void largeOneWay(Rank& rank, Shared& shared, const std::string& /*ptx*/) {
  const Stream stream = makeStream();
  uint32_t slot = 0;
  const uint32_t sizes[] = {64 << 10, 1 << 20};
  for (size_t k = 0; k < 2; ++k) {
    const uint32_t size = sizes[k];
    shared.times[rank.number][k] = oneWay(
        rank,
        stream,
        [&] { rank.waitSent(rank.send(stream, slot, size), stream); },
        [&] {
          rank.waitReceived(rank.receive(stream, kIn + slot), stream);
          slot = (slot + size) % (32 << 20); // more than caches hold
        });
  }
}

void smallOneWay(Rank& rank, Shared& shared, const std::string& /*ptx*/) {
  const Stream stream = makeStream();
  const uint32_t sizes[] = {8, kEagerBytes};
  for (size_t k = 0; k < 2; ++k) {
    const uint32_t size = sizes[k];
    shared.times[rank.number][k] = oneWay(
        rank,
        stream,
        [&] { rank.sendSmall(stream, 0, size); },
        [&] { rank.receiveSmall(stream, kIn, size); });
  }
  const auto value = static_cast<uint8_t>(3 + rank.number);
  fill(rank, 0, kEagerBytes, value);
  rank.sendSmall(stream, 0, kEagerBytes);
  rank.receiveSmall(stream, kIn, kEagerBytes);
  settle(stream);
  verify(rank, kIn, kEagerBytes, static_cast<uint8_t>(3 + 1 - rank.number));
  rank.barrier();
}

} // namespace

const std::vector<Program>& measurements() {
  static const std::vector<Program> all{
      {"calls",
       {"isend_us",
        "send_wait_us",
        "irecv_us",
        "recv_wait_us",
        "stream_us_per_message"},
       &calls},
      {"plain", {"stream_us_per_copy"}, &plain},
      {"large_one_way", {"us_64_kib", "us_1_mib"}, &largeOneWay},
      {"small_one_way", {"us_8_b", "us_8_kib"}, &smallOneWay}};
  return all;
}

} // namespace committed
