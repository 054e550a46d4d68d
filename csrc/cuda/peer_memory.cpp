#include "cuda/peer_memory.h"

#include <algorithm>
#include <iterator>

#include "base/log.h"

namespace dlslime::cuda {

namespace {
// Pauses before mapping is tried again, doubled from failure to failure:
// descriptors, memory or addresses may have been short, or old mappings not
// unmapped yet (kSoon). Where mapping is impossible, each try failing halfway
// costs an unmapping, and unmapping waits for the GPU.
constexpr milliseconds kSoon{10};
constexpr milliseconds kRetry{1000};
constexpr milliseconds kRarely{60000};
// Most allocations mapped (or tried) by a move(), while all pairs wait: an
// H200's driver takes 40 us for each, 10 ms for all. A move() needing more goes
// through pinned memory, and the next move() maps the rest.
constexpr int kMostTries = 256;
// Most descriptors asked for and not used yet, so also kept, and the time in
// which a descriptor asked for has to come.
constexpr size_t kMostHanded = 64;
constexpr milliseconds kHandOverTime{1000};
} // namespace

void PeerMemory::add(uint64_t id, ByteSpan description) {
  const auto exported = decodeAllocation(description);
  if (exported.id != id) {
    throw Error(
        ErrorCode::kTransportFailed,
        "a peer shares GPU memory with the number " + std::to_string(id) +
            ", but the description has the number " +
            std::to_string(exported.id));
  }
  if (const auto known = bases_.find(id); known != bases_.end() &&
      known->second == exported.base &&
      known_.at(exported.base).exported.size == exported.size) {
    known_.at(exported.base).describe(exported);
    return;
  }
  forget(id);
  // Allocations overlapping the new allocation have been freed, whether or not
  // the peer has said so.
  const auto end = exported.base + exported.size;
  for (auto last = known_.lower_bound(end); last != known_.begin();
       last = known_.lower_bound(end)) {
    const auto& before = std::prev(last)->second.exported;
    if (before.base + before.size <= exported.base) {
      break;
    }
    forget(before.id);
  }
  known_[exported.base].exported = exported;
  bases_[id] = exported.base;
}

void PeerMemory::forget(uint64_t id) {
  const auto found = bases_.find(id);
  if (found != bases_.end()) {
    awaited_.erase(id);
    known_.erase(found->second);
    bases_.erase(found);
  }
}

void PeerMemory::unmapIdle() {
  for (auto& [base, known] : known_) {
    known.views.clear(); // copies in progress hold their mappings
  }
}

PeerMemory::Known& PeerMemory::find(uint64_t address) {
  const auto after = known_.upper_bound(address);
  if (after != known_.begin()) {
    auto& [base, known] = *std::prev(after);
    if (address - base < known.exported.size) {
      return known;
    }
  }
  throw Error(
      ErrorCode::kTransportFailed,
      "the peer names GPU memory at " + std::to_string(address) +
          ", which the peer has not shared");
}

PeerMemory::MappingPtr PeerMemory::mappingOf(
    std::shared_ptr<Gpu> gpu,
    const Known& known) {
  const std::shared_ptr<Mapping> mapping(
      new Mapping(std::move(gpu), known.exported),
      [unused = unused_](const Mapping* ended) {
        std::unique_ptr<const Mapping> owned(ended);
        if (owned->mapped()) {
          unused->add(std::move(owned));
        }
      });
  auto handed = handed_.extract(known.exported.proof.word);
  if (handed) { // serves once: for another GPU, the peer is asked again
    awaited_.erase(known.exported.id);
  }
  mapping->open(pid_, handed ? std::move(handed.mapped()) : UniqueFd());
  return mapping;
}

void PeerMemory::map(
    const std::shared_ptr<Gpu>& gpu,
    Known& known,
    View& view) {
  const bool clear = unused_->empty(); // stays so under the engine lock
  view.problem = {};
  try {
    view.mapping = mappingOf(gpu, known);
    view.pause = {};
  } catch (const OutdatedDescriptor& error) {
    logDebug(error.what());
    known.outdated = true;
  } catch (const UnfetchableDescriptor& error) {
    logDebug(error.what());
    const bool waits = mayBeHandedOver(known.exported.id);
    if (!waits) {
      view.pause = std::clamp(view.pause * 2, kRetry, kRarely);
    }
    view.again = deadlineAfter(waits ? kSoon : view.pause);
    view.problem = waits ? Status() : error.status();
  } catch (const Error& error) {
    view.pause = std::clamp(view.pause * 2, clear ? kRetry : kSoon, kRarely);
    view.again = deadlineAfter(view.pause);
    // An earlier allocation at the peer's address may still be mapped here:
    // then mapping fails (CUDA_ERROR_ALREADY_MAPPED) until the unused mapping
    // is unmapped, which is soon.
    view.problem = view.pause < kRetry ? Status() : error.status();
    logDebug(error.what());
  }
}

// Has the peer asked for the descriptor, unless many are awaited. Returns false
// once when a descriptor asked for has not come in time: the next call asks
// again, since the peer may have been short of descriptors.
bool PeerMemory::mayBeHandedOver(uint64_t id) {
  const auto now = Clock::now();
  const auto asked = awaited_.find(id);
  if (asked != awaited_.end()) {
    const bool mayCome = now < asked->second;
    if (!mayCome) {
      awaited_.erase(asked);
    }
    return mayCome;
  }
  if (awaited_.size() >= kMostHanded) { // some for memory not used any more
    std::erase_if(awaited_, [&](const auto& one) { return one.second <= now; });
  }
  if (awaited_.size() < kMostHanded) {
    awaited_.emplace(id, now + kHandOverTime);
    unfetchable_.insert(id);
  }
  return true;
}

void PeerMemory::take(uint64_t number, UniqueFd fd) {
  if (handed_.size() >= kMostHanded) {
    handed_.erase(handed_.begin());
  }
  handed_[number] = std::move(fd);
}

// Returns the mapping, or null if there is none for now.
PeerMemory::MappingPtr
PeerMemory::mapFor(Plan& plan, const std::shared_ptr<Gpu>& gpu, Known& known) {
  auto& view = known.views[gpu->ordinal()];
  if (!view.mapping && !known.outdated && plan.tries < kMostTries &&
      Clock::now() >= view.again) {
    ++plan.tries;
    map(gpu, known, view);
  }
  if (!view.mapping && known.outdated) {
    outdated_.insert(known.exported.id);
  } else if (!view.problem.ok()) {
    throw Error(view.problem);
  }
  return view.mapping;
}

void PeerMemory::enter(
    Plan& plan,
    const std::shared_ptr<Gpu>& gpu,
    uint64_t address) {
  auto& known = find(address);
  auto mapping = mapFor(plan, gpu, known);
  plan.whole &= mapping != nullptr;
  plan.mapping = mapping.get();
  plan.begin = known.exported.base;
  plan.end = plan.begin + known.exported.size;
  if (mapping) {
    plan.used.push_back(std::move(mapping));
  }
}

void PeerMemory::addTo(
    Plan& plan,
    const std::shared_ptr<Gpu>& gpu,
    bool write,
    Piece piece) {
  while (piece.size > 0) {
    if (piece.remote < plan.begin || piece.remote >= plan.end) {
      enter(plan, gpu, piece.remote);
    }
    const auto size = std::min<size_t>(piece.size, plan.end - piece.remote);
    if (plan.mapping != nullptr) {
      const auto here = reinterpret_cast<DevicePointer>(piece.local);
      const auto there = plan.mapping->at(piece.remote, size);
      plan.copies.push_back(
          write ? Copy{there, here, size} : Copy{here, there, size});
    }
    piece = {piece.local + size, piece.remote + size, piece.size - size};
  }
}

bool PeerMemory::move(
    int device,
    bool write,
    std::span<const Piece> pieces,
    Accelerator::Done done) {
  outdated_.clear();
  unfetchable_.clear();
  const auto gpu = gpuOf_(device);
  Plan plan;
  plan.copies.reserve(pieces.size());
  for (const auto& piece : pieces) {
    addTo(plan, gpu, write, piece);
  }
  if (!plan.whole) {
    return false;
  }
  // Keeps the mappings until the copies are over, even if the peer frees the
  // memory meanwhile.
  start_(
      device,
      std::move(plan.copies),
      [used = std::move(plan.used),
       done = std::move(done)](const Status& status) { done(status); });
  return true;
}

} // namespace dlslime::cuda
