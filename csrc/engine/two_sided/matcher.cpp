#include "engine/two_sided/matcher.h"

#include <algorithm>

namespace dlslime {

namespace {
// Slots kept before empty slots are dropped. A tag that is used once leaves an
// empty slot; a tag that comes again is spared an allocation.
constexpr size_t kSlotsKept = 1024;

// Counts an empty message as 1 byte, because the message is unread, too.
uint64_t unreadBytesOf(const Arrival& arrival) {
  return arrival.announced ? 0 : std::max<uint64_t>(1, arrival.length);
}
} // namespace

Matcher::Slot* Matcher::findSlot(int source, uint32_t tag) {
  const Key key = keyOf(source, tag);
  if (lastSlot_ != nullptr && lastKey_ == key) {
    return lastSlot_;
  }
  const auto found = slots_.find(key);
  if (found == slots_.end()) {
    return nullptr;
  }
  lastKey_ = key;
  lastSlot_ = &found->second;
  return lastSlot_;
}

Matcher::Slot& Matcher::slotOf(int source, uint32_t tag) {
  if (Slot* const slot = findSlot(source, tag)) {
    return *slot;
  }
  if (slots_.size() >= kSlotsKept) {
    sweep();
  }
  lastKey_ = keyOf(source, tag);
  lastSlot_ = &slots_[lastKey_];
  return *lastSlot_;
}

// Drops empty slots, at amortised cost: runs only when the table is full. The
// table grows if most slots are in use, and the next sweep is far.
void Matcher::sweep() {
  lastSlot_ = nullptr;
  if (slots_.size() < slots_.bucket_count()) {
    return;
  }
  std::erase_if(slots_, [](const auto& entry) {
    return entry.second.receives.empty() && entry.second.arrivals.empty();
  });
}

// Returns the queue whose first receive gets the next message; null if none
// does.
OperationQueue* Matcher::queueFor(int source, uint32_t tag) {
  Slot* const slot = findSlot(source, tag);
  OperationQueue* const directed =
      slot != nullptr && !slot->receives.empty() ? &slot->receives : nullptr;
  if (anyCount_ != 0) {
    const auto any = anySource_.find(tag);
    if (any != anySource_.end() &&
        (directed == nullptr ||
         any->second.front()->order < directed->front()->order)) {
      return &any->second;
    }
  }
  return directed;
}

OperationPtr Matcher::takeReceive(int source, uint32_t tag) {
  auto* const queue = queueFor(source, tag);
  if (queue == nullptr) {
    return nullptr;
  }
  auto receive = queue->pop();
  if (receive->peer() == Operation::kAnySource) {
    --anyCount_;
    if (queue->empty()) {
      anySource_.erase(tag);
    }
  }
  return receive;
}

const Operation* Matcher::peekReceive(int source, uint32_t tag) {
  const auto* const queue = queueFor(source, tag);
  return queue == nullptr ? nullptr : queue->front().get();
}

OperationPtr Matcher::nextReceive(int source, uint32_t tag) {
  Slot* const slot = findSlot(source, tag);
  return slot == nullptr || !slot->arrivals.empty() ||
          (anyCount_ != 0 && anySource_.contains(tag))
      ? nullptr
      : slot->receives.front();
}

void Matcher::addArrival(Arrival arrival) {
  auto& arrivals = slotOf(arrival.source, arrival.tag).arrivals;
  arrivals.push_back(std::move(arrival));
  auto& added = arrivals.back();
  if (added.announced) {
    try { // an id announced twice finds the first
      announced_.emplace(idOf(added), std::prev(arrivals.end()));
    } catch (...) {
      arrivals.pop_back();
      throw;
    }
  }
  added.order = nextOrder_++;
  ++arrivalCount_;
  unreadBytes_ += unreadBytesOf(added);
}

void Matcher::forget(const Arrival& arrival) {
  const auto found =
      arrival.announced ? announced_.find(idOf(arrival)) : announced_.end();
  if (found != announced_.end() && &*found->second == &arrival) {
    announced_.erase(found);
  }
}

std::optional<Arrival> Matcher::takeFirst(Slot& slot) {
  if (slot.arrivals.empty()) {
    return std::nullopt;
  }
  forget(slot.arrivals.front());
  std::optional<Arrival> first(std::move(slot.arrivals.front()));
  slot.arrivals.pop_front();
  --arrivalCount_;
  unreadBytes_ -= unreadBytesOf(*first);
  return first;
}

Matcher::Slot* Matcher::oldestArrival(uint32_t tag) {
  Slot* oldest = nullptr;
  for (int source = 0; source < size_; ++source) {
    const auto found = slots_.find(keyOf(source, tag));
    if (found == slots_.end() || found->second.arrivals.empty()) {
      continue;
    }
    if (oldest == nullptr ||
        found->second.arrivals.front().order < oldest->arrivals.front().order) {
      oldest = &found->second;
    }
  }
  return oldest;
}

std::optional<Arrival> Matcher::takeArrival(const Operation& receive) {
  if (arrivalCount_ == 0) {
    return std::nullopt;
  }
  Slot* const slot = receive.peer() == Operation::kAnySource
      ? oldestArrival(receive.tag())
      : findSlot(receive.peer(), receive.tag());
  return slot != nullptr ? takeFirst(*slot) : std::nullopt;
}

void Matcher::addReceive(OperationPtr receive) {
  receive->order = nextOrder_++;
  receive->stage = Operation::Stage::kPosted;
  if (receive->peer() == Operation::kAnySource) {
    ++anyCount_;
    auto& queue = anySource_[receive->tag()];
    queue.push(std::move(receive));
    return;
  }
  auto& slot = slotOf(receive->peer(), receive->tag());
  slot.receives.push(std::move(receive));
}

bool Matcher::removeReceive(Operation& receive) {
  if (receive.peer() != Operation::kAnySource) {
    Slot* const slot = findSlot(receive.peer(), receive.tag());
    return slot != nullptr && slot->receives.remove(&receive);
  }
  const auto any = anySource_.find(receive.tag());
  if (any == anySource_.end() || !any->second.remove(&receive)) {
    return false;
  }
  --anyCount_;
  if (any->second.empty()) {
    anySource_.erase(any);
  }
  return true;
}

Arrival* Matcher::findArrival(
    int source,
    uint32_t tag,
    const Inbound* from,
    uint64_t id) {
  const auto found = announced_.find({from, id});
  if (found == announced_.end()) {
    return nullptr;
  }
  auto& arrival = *found->second;
  const bool theirs = arrival.source == source && arrival.tag == tag;
  return theirs ? &arrival : nullptr;
}

bool Matcher::removeArrival(
    int source,
    uint32_t tag,
    const Inbound* from,
    uint64_t id) {
  if (findArrival(source, tag, from, id) == nullptr) {
    return false;
  }
  const auto found = announced_.find({from, id});
  findSlot(source, tag)->arrivals.erase(found->second);
  announced_.erase(found);
  --arrivalCount_;
  return true;
}

void Matcher::removeAnnounced(const Inbound* from) {
  std::erase_if(announced_, [from](const auto& entry) {
    return entry.first.first == from;
  });
  for (auto& [key, slot] : slots_) {
    arrivalCount_ -= slot.arrivals.remove_if([&](const Arrival& arrival) {
      return arrival.announced && arrival.from == from;
    });
  }
}

OperationQueue Matcher::takeReceivesFrom(int source) {
  OperationQueue taken;
  for (auto& [key, slot] : slots_) {
    if (static_cast<int>(key >> 32) != source) {
      continue;
    }
    while (auto receive = slot.receives.pop()) {
      taken.push(std::move(receive));
    }
  }
  return taken;
}

OperationQueue Matcher::takeAnySource() {
  OperationQueue taken;
  for (auto& [tag, queue] : anySource_) {
    while (auto receive = queue.pop()) {
      taken.push(std::move(receive));
    }
  }
  anySource_.clear();
  anyCount_ = 0;
  return taken;
}

std::vector<Arrival> Matcher::takeArrivals() {
  std::vector<Arrival> taken;
  for (auto& [key, slot] : slots_) {
    while (auto arrival = takeFirst(slot)) {
      taken.push_back(std::move(*arrival));
    }
  }
  return taken;
}

std::vector<OperationPtr> Matcher::posted() const {
  std::vector<OperationPtr> all;
  for (const auto& [key, slot] : slots_) {
    slot.receives.forEach([&](const OperationPtr& op) { all.push_back(op); });
  }
  for (const auto& [tag, queue] : anySource_) {
    queue.forEach([&](const OperationPtr& op) { all.push_back(op); });
  }
  return all;
}

} // namespace dlslime
