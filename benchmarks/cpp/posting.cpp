// Cost of posting work requests and of learning their ends, without a device:
// post_send and poll_cq only record signalled requests.
//
//   cmake -S tests/cpp -B build/cpp-plain -DSANITIZE=none
//   cmake --build build/cpp-plain --target dlslime_posting
//   build/cpp-plain/dlslime_posting
//
// The aim is 3 million requests per second on a core.
#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <vector>

#include "base/clock.h"
#include "fakes/verbs/fake_verbs.h"
#include "transports/rdma/bulk.h"
#include "transports/rdma/rail_memory.h"

namespace dlslime {
namespace {

using rdma::Rail;
using rdma::RequestKind;

constexpr int kRequests = 4'000'000;
constexpr int kRounds = 5;
constexpr double kAim = 3.0; // millions per second

std::deque<uint64_t> signalled;

int postNothing(ibv_qp* /*pair*/, ibv_send_wr* list, ibv_send_wr** /*bad*/) {
  for (; list != nullptr; list = list->next) {
    if ((list->send_flags & IBV_SEND_SIGNALED) != 0) {
      signalled.push_back(list->wr_id);
    }
  }
  return 0;
}

int pollWhatWasPosted(ibv_cq* /*queue*/, int most, ibv_wc* completions) {
  int count = 0;
  for (; count < most && !signalled.empty(); ++count) {
    completions[count] = {};
    completions[count].wr_id = signalled.front();
    completions[count].opcode = IBV_WC_RDMA_READ;
    signalled.pop_front();
  }
  return count;
}

class NoEvents final : public ConnectionEvents {
 public:
  void onMessage(const MessageHeader& /*header*/, ByteSpan /*payload*/)
      override {}
  void onPulled(uint64_t /*pullId*/, const Status& /*status*/) override {}
};

template <typename Body>
double millionsPerSecond(const Body& body) {
  const auto start = Clock::now();
  body();
  const std::chrono::duration<double> took = Clock::now() - start;
  return kRequests / took.count() / 1e6;
}

template <typename Done>
void pollRail(Rail& rail, const Done& done) {
  ibv_wc completions[32];
  const int count = rail.completions->poll(completions, 32);
  for (int i = 0; i < count; ++i) {
    done(rail.queue.completed(completions[i].wr_id));
  }
}

// Posts small writes, chained as within a poll, one in 32 signalled.
void writes(Rail& rail) {
  ibv_sge segment{};
  segment.length = 64;
  for (int posted = 0; posted < kRequests;) {
    rail.queue.hold();
    for (int i = 0; i < 256 && rail.queue.room(); ++i, ++posted) {
      ibv_send_wr request{};
      request.opcode = IBV_WR_RDMA_WRITE;
      request.sg_list = &segment;
      request.num_sge = 1;
      int error = 0;
      rail.queue.post(request, RequestKind::kMessage, 0, error);
    }
    int error = 0;
    rail.queue.letGo(error);
    pollRail(rail, [](const rdma::RequestId&) {});
  }
}

// Posts the reads of a large message's pieces.
void reads(const std::vector<std::unique_ptr<Rail>>& rails) {
  auto& rail = *rails.front();
  rdma::Bulk bulk;
  bulk.use(rails);
  RemoteBuffer source;
  source.keys = {1, 1, 1};
  rdma::RailMemory memory;
  memory.use(rails);
  static std::byte nothing[4096];
  const auto regions = memory.acquire({nothing, sizeof(nothing)});
  // No byte is touched, since there is no device.
  bulk.startPull(1, source, {nothing, size_t{kRequests} << 20}, regions);
  NoEvents events;
  std::string why;
  while (!bulk.empty()) {
    rail.queue.hold();
    bulk.post(why);
    int error = 0;
    rail.queue.letGo(error);
    pollRail(
        rail, [&](const rdma::RequestId& /*id*/) { bulk.completed(rail, {}); });
    bulk.report(events);
  }
}

template <typename Body>
void measure(const char* name, const Body& body) {
  std::array<double, kRounds> rates{};
  for (auto& rate : rates) {
    rate = millionsPerSecond(body);
  }
  std::sort(rates.begin(), rates.end());
  const double median = rates[kRounds / 2];
  std::printf(
      "%-28s %6.1f million per second (%.1f to %.1f), aim %.0f: %s\n",
      name,
      median,
      rates.front(),
      rates.back(),
      kAim,
      median >= kAim ? "ok" : "short");
}

void run() {
  const testing::FakeFabric fabric;
  RdmaConfig config;
  const auto found = rdma::openNics(testing::FakeFabric::verbs(), config);
  const auto& nic = found.nics.front();
  const rdma::RingMemory memory;
  std::vector<std::unique_ptr<Rail>> rails;
  rails.push_back(std::make_unique<Rail>(
      0,
      0,
      nic,
      std::make_shared<rdma::CompletionQueue>(
          nic->context(),
          std::make_shared<rdma::CompletionChannel>(nic->context()),
          Rail::mostCompletions(*nic)),
      memory,
      config));
  auto& calls = nic->context()->get()->ops;
  calls.post_send = postNothing;
  calls.poll_cq = pollWhatWasPosted;
  measure("writes of 64 B, chained", [&] { writes(*rails.front()); });
  signalled.clear();
  measure("reads, pieces of a message", [&] { reads(rails); });
}

} // namespace
} // namespace dlslime

int main() {
  dlslime::run();
}
