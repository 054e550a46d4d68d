#include "engine/gpu/staging.h"

#include <algorithm>

namespace dlslime {

namespace {
// Large enough that beginning a copy costs little; chosen without a GPU.
constexpr size_t kPieceBytes = 512 * 1024;
// Pieces copied ahead, to keep a copy engine busy while processors move a
// piece; chosen without a GPU.
constexpr size_t kAhead = 4;
} // namespace

void Uploads::start(
    Accelerator& gpus,
    int device,
    ByteSpan bytes,
    std::span<const std::span<std::byte>> places,
    const CopyUser& user) {
  const auto over = [load = load_,
                     size = bytes.size(),
                     count = places.size(),
                     ended = user.ended](const Status& status) {
    load->bytes -= size;
    load->places -= count;
    ended(status);
  };
  user.begins();
  load_->bytes += bytes.size();
  load_->places += places.size();
  try {
    const auto aside = gpus.pin(device, bytes.size());
    copyBytes(aside.get(), bytes.data(), bytes.size());
    std::vector<Accelerator::Copy> copies;
    copies.reserve(places.size());
    const auto* from = aside.get();
    for (const auto& place : places) {
      copies.push_back({place.data(), from, place.size()});
      from += place.size();
    }
    gpus.copy(
        device, copies, [aside, over](const Status& status) { over(status); });
  } catch (const std::exception& error) { // the copy has not begun
    over(inWords([&] { return statusOf(error); }));
  }
}

void StagedSource::fetchAhead(const Gather& gather) {
  while (pieces_.size() < kAhead && !failed() && fetch(gather)) {
  }
}

// Begins to copy the next piece. False: no bytes are left to copy now, or the
// copy failed.
bool StagedSource::fetch(const Gather& gather) {
  const auto before = pieces_.size();
  user_.begins();
  try {
    Piece piece;
    piece.there = std::make_shared<bool>(false);
    Ranges next;
    gather(kPieceBytes, next);
    for (const auto& range : next) {
      piece.size += range.size();
    }
    if (piece.size == 0) {
      user_.ended({});
      return false;
    }
    pieces_.push_back(piece);
    start(pieces_.back(), next);
    return true;
  } catch (const std::exception& error) { // the copy has not begun
    pieces_.resize(before);
    *failed_ = true;
    user_.ended(inWords([&] { return statusOf(error); }));
    return false;
  }
}

void StagedSource::start(Piece& piece, const Ranges& ranges) {
  piece.bytes = gpus_.pin(device_, piece.size);
  std::vector<Accelerator::Copy> copies;
  copies.reserve(ranges.size());
  auto* to = piece.bytes.get();
  for (const auto& range : ranges) {
    copies.push_back({to, range.data(), range.size()});
    to += range.size();
  }
  gpus_.copy(
      device_,
      copies,
      [piece, failed = failed_, ended = user_.ended](const Status& status) {
        (status.ok() ? *piece.there : *failed) = true;
        ended(status);
      });
}

ByteSpan StagedSource::front(size_t most) const {
  if (pieces_.empty() || !*pieces_.front().there) {
    return {};
  }
  const auto& piece = pieces_.front();
  return {piece.bytes.get() + taken_, std::min(most, piece.size - taken_)};
}

void StagedSource::pop(size_t size) {
  taken_ += size;
  if (taken_ == pieces_.front().size) {
    pieces_.pop_front();
    taken_ = 0;
  }
}

} // namespace dlslime
