// A peer's descriptions of GPU memory: kShare's payloads, and the table of the
// descriptions.
#include "cuda/exports.h"
#include "cuda/peer_memory.h"
#include "fuzz.h"

namespace dlslime::fuzz {
namespace {

using cuda::ExportedAllocation;

void checkOne(ByteSpan bytes) {
  const auto taken = cuda::decodeAllocation(bytes);
  require(taken.size > 0, "an allocation has bytes");
  require(taken.base + taken.size > taken.base, "none wraps");
  require(
      cuda::encode(taken) == copyOf(bytes), "there is one way to say anything");
}

// Maps nothing: pid 0 has no process, and no GPU exists.
void run(Input input) {
  cuda::PeerMemory memory(
      0,
      [](int) -> std::shared_ptr<cuda::Gpu> { return nullptr; },
      [](int, std::vector<cuda::Copy>, const Accelerator::Done&) {
        require(false, "nothing is copied");
      },
      std::make_shared<cuda::UnusedMappings>());
  while (input.more()) {
    const auto id = input.any<uint64_t>({1, 2, 3, input.number<uint64_t>()});
    const auto what = input.below(4);
    if (what == 0) {
      memory.forget(id);
      continue;
    }
    Bytes bytes = copyOf(input.blob());
    if (what == 1) { // well-formed, often beside or over an earlier allocation
      ExportedAllocation exported;
      exported.id = id;
      exported.base = input.number<uint16_t>() * uint64_t{4096};
      exported.size = 1 + input.number<uint16_t>();
      exported.by = ExportedAllocation::By::kDescriptor;
      bytes = cuda::encode(exported);
    }
    takes([&] { memory.add(id, bytes); });
    takes([&] { checkOne(bytes); });
    memory.unmapIdle();
  }
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
