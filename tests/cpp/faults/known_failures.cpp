#include "faults/known_failures.h"

namespace dlslime::testing {

const std::vector<KnownFailure>& knownFailures() {
  static const std::vector<KnownFailure> all{
      {Call::kThread,
       "",
       "",
       "threw what is no Error: no thread",
       "std::system_error of a thread of the engine goes to the caller"},
      {Call::kThread,
       "",
       "",
       "of an exception: no thread",
       "Enroller::wake() starts a thread on a thread of the engine"},
      {Call::kGetSocketOption,
       "",
       "Listener::meant",
       "cannot tell who is at the other end",
       "the wire-up thread does not catch what Listener::accept() throws"},
      {Call::kGetSocketName,
       "",
       "Listener::meant",
       "cannot tell the address of a socket",
       "the wire-up thread does not catch what Listener::accept() throws"},
      {Call::kEngineAllocation,
       "",
       "",
       "of an exception: std::bad_alloc",
       "no thread of the engine catches bad_alloc"},
      {Call::kEngineAllocation,
       "",
       "Topology::nodesOf",
       "std::terminate",
       "std::filesystem allocates where nothing may be thrown"},
      {Call::kCallerAllocation,
       "Gpu",
       "PinnedPool::take",
       "hangs",
       "a block that nobody has got is given back under the pool's lock"},
      {Call::kEngineAllocation,
       "Gpu",
       "PinnedPool::take",
       "hangs",
       "a block that nobody has got is given back under the pool's lock"},
      {Call::kCallerAllocation,
       "Gpu",
       "Copier::takeEnded",
       "hangs",
       "what has ended is lost where the list of it can't grow"},
      {Call::kEngineAllocation,
       "Gpu",
       "Copier::takeEnded",
       "hangs",
       "what has ended is lost where the list of it can't grow"},
      {Call::kEngineAllocation,
       "",
       "takeDescriptors",
       "open descriptors",
       "descriptors that came have no owner where the list can't grow"},
      {Call::kEngineAllocation,
       "",
       "Handshakes::connectGuest",
       "ends with status",
       "what is made of a guest is destroyed while half of it is there"},
      {Call::kEngineAllocation,
       "",
       "rdma::Context::Context",
       "",
       "what the context has opened is not closed where it can't be noted"},
      {Call::kEngineAllocation,
       "",
       "rdma::allowedCpus",
       "leaks memory",
       "CPU_FREE is not called where the list can't grow"},
      {Call::kCallerAllocation,
       "",
       "GlooTransport::GlooTransport",
       "open descriptors",
       "the descriptor has no owner while its owner is made"},
      {Call::kCallerAllocation,
       "",
       "Engine::~Engine",
       "of an exception: std::bad_alloc",
       "the destructor allocates to say why what was pending ends"},
      {Call::kCallerAllocation,
       "",
       "Progress::sleepWait",
       "",
       "the sleeper's place is not given back where sleeping throws"},
      {Call::kCallerAllocation,
       "",
       "Slab<",
       "",
       "Slab::insert() notes an index before there is an entry for it"},
      {Call::kCallerAllocation,
       "",
       "Outbound::announce",
       "outbound_end.cpp",
       "an exposure is left without its operation"},
  };
  return all;
}

const KnownFailure* findKnown(const FaultWay& way, const CaseResult& result) {
  std::string site, outcome;
  for (const auto& known : knownFailures()) {
    if (known.call != result.fault.call ||
        std::string(way.name).find(known.way) == std::string::npos) {
      continue;
    }
    if (outcome.empty()) {
      site = siteOf(result.report.calls);
      outcome = result.describe(way);
    }
    if (site.find(known.site) != std::string::npos &&
        outcome.find(known.outcome) != std::string::npos) {
      return &known;
    }
  }
  return nullptr;
}

} // namespace dlslime::testing
