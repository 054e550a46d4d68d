// Pieces that meet other pieces: what would be there in the end is not known.
#include <algorithm>
#include <iterator>

#include "engine/transfer.h"

namespace dlslime {

namespace {

struct Span {
  uint64_t begin, end;
};

Span hullOf(const std::vector<Span>& spans) {
  Span hull{UINT64_MAX, 0};
  for (const auto& span : spans) {
    hull.begin = std::min(hull.begin, span.begin);
    hull.end = std::max(hull.end, span.end);
  }
  return hull;
}

void sort(std::vector<Span>& spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& one, const Span& two) {
    return one.begin < two.begin;
  });
}

// Both are sorted, and of the first none overlap among themselves.
bool meet(const std::vector<Span>& targets, const std::vector<Span>& sources) {
  size_t at = 0;
  for (const auto& source : sources) {
    while (at < targets.size() && targets[at].end <= source.begin) {
      ++at;
    }
    if (at < targets.size() && targets[at].begin < source.end) {
      return true;
    }
  }
  return false;
}

} // namespace

void refuseOverlap(const std::vector<Transfer::Part>& parts, bool write) {
  struct Range {
    uint64_t begin, end;
    const Transfer::Part* part;
  };
  const auto rangeOf = [write](const Transfer::Part& part, const Piece& piece) {
    const auto begin =
        write ? piece.remote : reinterpret_cast<uint64_t>(piece.local);
    return Range{begin, begin + piece.size, &part};
  };
  const auto overlap = [](std::vector<Range>& ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
      return a.begin < b.begin;
    });
    return std::adjacent_find(
               ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
                 return a.end > b.begin;
               }) != ranges.end();
  };
  // Where all go, part by part: most often that is apart.
  std::vector<Range> hulls, all;
  for (const auto& part : parts) {
    auto hull = rangeOf(part, part.pieces.front());
    for (const auto& piece : part.pieces) {
      const auto range = rangeOf(part, piece);
      hull.begin = std::min(hull.begin, range.begin);
      hull.end = std::max(hull.end, range.end);
    }
    hulls.push_back(hull);
  }
  if (parts.size() < 2 || !overlap(hulls)) {
    return;
  }
  for (const auto& part : parts) {
    for (const auto& piece : part.pieces) {
      all.push_back(rangeOf(part, piece));
    }
  }
  if (overlap(all)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string("pieces of two parts of a ") + (write ? "write" : "read") +
            " overlap in the " +
            (write ? "remote memory"
                   : "local " + all.front().part->local->describe()) +
            ": which one would be there in the end is not known");
  }
}

// Several threads copy them, in any order.
void refuseOverlapWithSources(
    const std::vector<Transfer::Part>& parts,
    bool write) {
  std::vector<Span> targets, sources;
  for (const auto& part : parts) {
    if (part.remote->instance != part.local->handle().instance) {
      return; // of two processes
    }
    for (const auto& piece : part.pieces) {
      const auto local = reinterpret_cast<uint64_t>(piece.local);
      if (local != piece.remote) { // else it stays as it is
        const Span here{local, local + piece.size};
        const Span there{piece.remote, piece.remote + piece.size};
        targets.push_back(write ? there : here);
        sources.push_back(write ? here : there);
      }
    }
  }
  const auto to = hullOf(targets), from = hullOf(sources);
  if (to.begin >= from.end || from.begin >= to.end) {
    return; // most often
  }
  sort(targets);
  sort(sources);
  if (meet(targets, sources)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string("the pieces of a ") + (write ? "write" : "read") +
            " within this process overlap what they are copied from, in " +
            parts.front().local->describe() +
            ": copy by way of other memory, or in several transfers");
  }
}

} // namespace dlslime
