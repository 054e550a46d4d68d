// Checks for overlapping pieces, because the bytes left by overlapping copies
// would be unknown.
#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "engine/one_sided/transfer.h"

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

// Returns whether a source overlaps a target. Both vectors are sorted, and no
// two targets overlap.
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

// A space with comparable addresses: a file, wherever mapped, or the memory of
// a process.
struct Space {
  std::string_view name; // empty: no space
  uint64_t shift; // added to an address of the region
};
using SpaceOf = Space (*)(const RegionHandle& region);

Space fileOf(const RegionHandle& region) {
  return {region.pages.file, region.pages.offset - region.address};
}

Space processOf(const RegionHandle& region) {
  const auto* const name = region.instance.data();
  return {{reinterpret_cast<const char*>(name), region.instance.size()}, 0};
}

struct Ends {
  const RegionHandle* from;
  const RegionHandle* to;
};

Ends endsOf(const Transfer::Part& part, bool write) {
  const auto* const local = &part.local->handle();
  return write ? Ends{local, part.remote.get()}
               : Ends{part.remote.get(), local};
}

// Bytes read and bytes written in a space.
struct Meeting {
  bool read = false, written = false;
  std::vector<Span> sources, targets;

  bool overlaps() {
    const auto to = hullOf(targets), from = hullOf(sources);
    if (to.begin >= from.end || from.begin >= to.end) {
      return false; // most often
    }
    sort(targets);
    sort(sources);
    return meet(targets, sources);
  }
};

void addSpans(
    const Transfer::Part& part,
    bool write,
    SpaceOf spaceOf,
    std::map<std::string_view, Meeting>& meetings) {
  const auto [from, to] = endsOf(part, write);
  const auto source = spaceOf(*from), target = spaceOf(*to);
  const auto read = meetings.find(source.name);
  const auto written = meetings.find(target.name);
  for (const auto& piece : part.pieces) {
    const auto local = reinterpret_cast<uint64_t>(piece.local);
    const uint64_t begin = (write ? local : piece.remote) + source.shift;
    const uint64_t there = (write ? piece.remote : local) + target.shift;
    if (read == written && begin == there) {
      continue; // copied onto the same bytes
    }
    if (read != meetings.end()) {
      read->second.sources.push_back({begin, begin + piece.size});
    }
    if (written != meetings.end()) {
      written->second.targets.push_back({there, there + piece.size});
    }
  }
}

[[noreturn]] void refuseMeeting(
    const std::vector<Transfer::Part>& parts,
    bool write) {
  const auto& part = parts.front();
  const bool within = part.remote->instance == part.local->handle().instance;
  throw Error(
      ErrorCode::kInvalidArgument,
      std::string("the pieces of a ") + (write ? "write" : "read") +
          (within ? " within this process"
                  : ", between processes that have mapped the same file,") +
          " overlap what they are copied from, in " + part.local->describe() +
          ": copy by way of other memory, or in several transfers");
}

bool sourcesOverlap(
    const std::vector<Transfer::Part>& parts,
    bool write,
    SpaceOf spaceOf) {
  if (parts.size() == 1) { // most often, and mostly enough
    const auto [from, to] = endsOf(parts.front(), write);
    if (spaceOf(*from).name != spaceOf(*to).name) {
      return false;
    }
  }
  std::map<std::string_view, Meeting> meetings;
  for (const auto& part : parts) {
    const auto& [from, to] = endsOf(part, write);
    meetings[spaceOf(*from).name].read = true;
    meetings[spaceOf(*to).name].written = true;
  }
  std::erase_if(meetings, [](const auto& entry) {
    return entry.first.empty() || !entry.second.read || !entry.second.written;
  });
  if (meetings.empty()) {
    return false; // most often: between processes that share no memory
  }
  for (const auto& part : parts) {
    addSpans(part, write, spaceOf, meetings);
  }
  return std::any_of(meetings.begin(), meetings.end(), [](auto& entry) {
    return entry.second.overlaps();
  });
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
  // The targets of each part are compared as a whole first: most often parts
  // are apart.
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
            ": the result would depend on the order of the copies");
  }
}

// Several threads copy the pieces in any order, so no target may overlap a
// source.
void refuseOverlapWithSources(
    const std::vector<Transfer::Part>& parts,
    bool write) {
  if (sourcesOverlap(parts, write, processOf) ||
      sourcesOverlap(parts, write, fileOf)) {
    refuseMeeting(parts, write);
  }
}

} // namespace dlslime
