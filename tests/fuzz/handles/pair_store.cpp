// The store between two processes that set up a pair for Gloo: frames on a
// socket. Includes the decoder, since compiling torch's headers takes longer
// than all else.
#include "torch_ext/store/pair_store.cpp" // NOLINT

#include "descriptors.h"
#include "fuzz.h"

namespace dlslime {

// Replaces python_end.cpp: the fuzzer has no interpreter.
StaysWhenPythonEnds::~StaysWhenPythonEnds() = default;
OutsidePython::OutsidePython() : depth_(0) {}
OutsidePython::~OutsidePython() = default;

namespace fuzz {
namespace {

void run(Input input) {
  const DescriptorsKept kept;
  int ends[2];
  require(
      socketpair(
          AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
      "there are sockets");
  UniqueFd peer(ends[0]);
  SideSocket ours{UniqueFd(ends[1]), copyOf(input.blob())};
  const auto sent = input.rest();
  send(peer.get(), sent.data(), sent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  shutdown(peer.get(), SHUT_WR);
  try {
    PairStore store(std::move(ours), std::chrono::seconds(1));
    store.set("own", std::vector<uint8_t>{1, 2, 3});
    store.get("key");
    store.finish();
  } catch (const c10::DistStoreError&) { // as expected
  }
}

} // namespace
} // namespace fuzz
} // namespace dlslime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
