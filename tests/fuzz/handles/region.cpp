// The handle of a peer's region, and pieces of the region.
#include "engine/one_sided/region.h"

#include "engine/one_sided/transfer.h"
#include "fuzz.h"

namespace dlslime::fuzz {
namespace {

constexpr size_t kLocalBytes = 4096;

const RegionPtr& ownRegion() {
  static auto* const self =
      new PeerIdentity{Bytes(16, std::byte{1}), "boot", "here", 0, 1, 0, 0, ""};
  static auto* const table = new RegionTable(*self, [] {});
  static auto* const bytes = new Bytes(kLocalBytes);
  static auto* const made = new RegionPtr(table->add(
      {bytes->data(), bytes->size()}, "own", nullptr, {"file 1", 4096}));
  return *made;
}

// Uses a handle as one-sided transfers do before any message to the peer.
void usePieces(Input& input, const RegionHandle& remote) {
  const auto& own = ownRegion();
  const bool write = input.oneIn(2);
  std::vector<Transfer::Part> parts;
  takes([&] {
    PieceBuilder builder(*own, remote, write, 4);
    for (int i = 0; i < 4; ++i) {
      const auto local = input.number<uint16_t>() % (kLocalBytes + 1);
      const auto there = input.number<int64_t>();
      builder.add(static_cast<int64_t>(local), there, input.number<uint16_t>());
    }
    const auto pieces = builder.take();
    for (const auto& piece : pieces) {
      require(
          piece.remote >= remote.address &&
              piece.remote - remote.address <= remote.size - piece.size,
          "a piece lies in the peer's region");
    }
    if (!pieces.empty()) { // callers leave empty parts out
      parts.push_back(
          {own, std::make_shared<const RegionHandle>(remote), pieces});
    }
    refuseOverlap(parts, write);
    refuseOverlapWithSources(parts, write);
  });
}

void run(Input input) {
  const auto bytes = copyOf(input.blob());
  takes([&] {
    const auto handle = decodeRegion(bytes);
    require(handle.address + handle.size >= handle.address, "none wraps");
    requirePlain(handle.describe());
    const Bytes once = encode(decodeRegion(encode(handle)));
    require(encode(decodeRegion(once)) == once, "it is decoded to the same");
    usePieces(input, handle);
  });
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
