#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "fakes/verbs/fake_verbs.h"

namespace dlslime::testing {

// Objects behind the opaque pointers of verbs: each begins with the public
// part.
struct FakeFabric::Context {
  ibv_context base{};
  const FakeDevice* device = nullptr;
  std::deque<ibv_async_event> events;
};

struct FakeFabric::Cq {
  ibv_cq base{};
  struct Entry {
    ibv_wc completion;
    // Queue pair whose send queue gets shorter when the entry is polled.
    Qp* retiring;
    uint64_t retires;
  };
  std::deque<Entry> entries;
  size_t capacity = 0;
  bool armed = false;
};

struct FakeFabric::Request {
  ibv_send_wr request{};
  std::vector<ibv_sge> segments;
  std::vector<std::byte> inlined;
  uint64_t index = 0;
  int delay = 0;
  bool slow = false; // completes without polls, too
  size_t bytes() const {
    size_t sum = 0;
    for (const auto& segment : segments) {
      sum += segment.length;
    }
    return sum;
  }
};

struct FakeFabric::Qp {
  ibv_qp base{};
  ibv_qp_cap limits{};
  Cq* sendCq = nullptr;
  Cq* receiveCq = nullptr;
  ibv_qp_attr attributes{};
  std::deque<Request> sends;
  std::deque<uint64_t> receives; // wr_id
  std::vector<std::pair<std::byte*, std::vector<std::byte>>> unlanded;
  uint64_t posted = 0; // sends, ever
  uint64_t retired = 0; // sends known by polling to be over
};

// Calls in the ops of a context, as static members of a friend with access to
// the fabric's state.
struct FakeQueues {
  static std::unique_lock<std::mutex> lock();
  // Returns the errno for the call to fail with; under the lock.
  static int refused(const char* call);
  static int postSend(ibv_qp* base, ibv_send_wr* list, ibv_send_wr** bad);
  static int postReceive(ibv_qp* base, ibv_recv_wr* list, ibv_recv_wr** bad);
  static int poll(ibv_cq* base, int most, ibv_wc* out);
  static int arm(ibv_cq* base, int solicited);

 private:
  // Takes a request of a list; returns the result for post_send.
  static int take(FakeFabric::Qp& qp, const ibv_send_wr& wr);
  template <typename Change>
  static void progressAll(const Change& change);
};

// Calls for queue pairs.
struct FakePairs {
  static ibv_qp* make(ibv_pd* domain, ibv_qp_init_attr* wanted);
  static int modify(ibv_qp* base, ibv_qp_attr* attributes, int mask);
  static int destroy(ibv_qp* qp);

 private:
  static int refusal(ibv_context* context, ibv_qp_state state);
};

inline FakeFabric::Qp& of(ibv_qp* qp) {
  return *reinterpret_cast<FakeFabric::Qp*>(qp);
}
inline FakeFabric::Cq& of(ibv_cq* cq) {
  return *reinterpret_cast<FakeFabric::Cq*>(cq);
}
inline FakeFabric::Context& of(ibv_context* context) {
  return *reinterpret_cast<FakeFabric::Context*>(context);
}

} // namespace dlslime::testing
