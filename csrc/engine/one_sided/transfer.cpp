#include "engine/one_sided/transfer.h"

#include <algorithm>
#include <bit>

namespace dlslime {

namespace {

// Most bits for marking the targets of pieces: 4 MiB of memory.
constexpr uint64_t kMostUnits = uint64_t{32} << 20;
// Most marks per piece for marking to be cheaper than sorting.
constexpr uint64_t kMostMarks = 16;

} // namespace

Transfer::Transfer(Kind kind, int peer, std::shared_ptr<const Parts> parts)
    : Operation(kind, peer, 0, {}), parts_(std::move(parts)) {
  for (const auto& part : *parts_) {
    for (const auto& piece : part.pieces) {
      totalBytes_ += piece.size;
    }
  }
  setResult(peer, totalBytes_); // known from the beginning: for flight records
}

void Transfer::hold() {
  for (const auto& part : *parts_) {
    ++part.local->uses;
  }
}

void Transfer::over() {
  for (const auto& part : *parts_) {
    --part.local->uses;
  }
}

std::string Transfer::describe() const {
  size_t pieces = 0;
  for (const auto& part : *parts_) {
    pieces += part.pieces.size();
  }
  return (write() ? "write to " : "read from ") + nameOf(peer()) + " (" +
      std::to_string(pieces) + " pieces, " + std::to_string(totalBytes_) +
      " bytes" +
      (parts_->empty() ? "" : ", " + parts_->front().remote->describe()) + ")";
}

PieceBuilder::PieceBuilder(
    const Region& local,
    const RegionHandle& remote,
    bool write,
    size_t expected)
    : local_(local),
      remote_(remote),
      write_(write),
      localBase_(local.view().data),
      localSize_(local.view().size),
      remoteBase_(remote.address),
      remoteSize_(remote.size) {
  if (write ? remote.readOnly : local.view().readOnly) {
    throw Error(
        ErrorCode::kInvalidArgument,
        write ? "the remote " + remote.describe() +
                " was registered for reading, and can't be written"
              : "the local " + local.describe() +
                " was registered for reading, and a read would write it");
  }
  pieces_.reserve(expected);
}

void PieceBuilder::refuse(
    int64_t localOffset,
    int64_t remoteOffset,
    int64_t length) const {
  const auto range = [length](int64_t offset) {
    return "offset " + std::to_string(offset) + " and length " +
        std::to_string(length);
  };
  const auto begin = static_cast<uint64_t>(localOffset);
  const auto size = static_cast<uint64_t>(length);
  const bool local = size > localSize_ || begin > localSize_ - size;
  throw Error(
      ErrorCode::kInvalidArgument,
      "piece " + std::to_string(added_) + " of a " +
          (write_ ? "write" : "read") + " is outside of " +
          (local ? "the local " + local_.describe() + ": " + range(localOffset)
                 : "the remote " + remote_.describe() + " (" +
                   std::to_string(remoteSize_) +
                   " bytes): " + range(remoteOffset)));
}

PieceBuilder::Range PieceBuilder::target(const Piece& piece) const {
  const auto begin = write_ ? piece.remote - remoteBase_
                            : static_cast<uint64_t>(piece.local - localBase_);
  return {begin, piece.size};
}

bool PieceBuilder::ascending() const {
  uint64_t end = 0;
  return std::all_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
    const auto range = target(piece);
    const bool above = range.begin >= end;
    end = range.begin + range.size;
    return above;
  });
}

// Returns whether targets overlap. All pieces begin and end at multiples of
// `unit`, as pages do.
bool PieceBuilder::overlapOnGrid(uint64_t unit) const {
  const uint64_t size = write_ ? remoteSize_ : localSize_;
  std::vector<bool> taken(size / unit + 1);
  for (const auto& piece : pieces_) {
    const auto range = target(piece);
    const auto first = range.begin / unit;
    for (auto at = first; at < first + range.size / unit; ++at) {
      if (taken[at]) {
        return true;
      }
      taken[at] = true;
    }
  }
  return false;
}

bool PieceBuilder::overlapSorted() const {
  std::vector<Range> ranges;
  ranges.reserve(pieces_.size());
  for (const auto& piece : pieces_) {
    ranges.push_back(target(piece));
  }
  std::sort(ranges.begin(), ranges.end(), [](const auto& one, const auto& two) {
    return one.begin < two.begin;
  });
  return std::adjacent_find(
             ranges.begin(),
             ranges.end(),
             [](const auto& one, const auto& two) {
               return one.begin + one.size > two.begin;
             }) != ranges.end();
}

std::vector<Piece> PieceBuilder::take() {
  if (!ascending()) {
    uint64_t bits = 0, bytes = 0;
    for (const auto& piece : pieces_) {
      const auto range = target(piece);
      bits |= range.begin | range.size;
      bytes += range.size;
    }
    const auto unit = uint64_t{1} << std::countr_zero(bits);
    const uint64_t size = write_ ? remoteSize_ : localSize_;
    const bool grid = size / unit <= kMostUnits &&
        bytes / unit <= kMostMarks * pieces_.size();
    if (grid ? overlapOnGrid(unit) : overlapSorted()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          std::string("two pieces of a ") +
              (write_ ? "write overlap in the remote " + remote_.describe()
                      : "read overlap in the local " + local_.describe()) +
              ": the result would depend on the order of the copies");
    }
  }
  return std::move(pieces_);
}

} // namespace dlslime
