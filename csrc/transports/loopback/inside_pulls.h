#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "interface/connection.h"
#include "interface/connection_abilities.h"

namespace dlslime::loopback {

// Pulls of messages whose sender and receiver are in this process, as CopyJobs.
// Under the engine's lock.
class InsidePulls {
 public:
  // Returns the memory that the sender exposes as `id`; empty if none (any
  // more).
  using ExposedAs = std::function<MemoryView(uint64_t id)>;
  explicit InsidePulls(ExposedAs exposed) : exposed_(std::move(exposed)) {}

  // Begins the pull `id` of the memory exposed as `peerId`, from `source` on.
  // Reported after `delay` further reports at the earliest.
  void add(
      uint64_t id,
      uint64_t peerId,
      const RemoteBuffer& source,
      const MemoryView& destination,
      int delay = 0);
  void abandon(uint64_t id);
  void abandonAll();
  bool claim(CopyJob& job);
  void finish(const CopyJob& job);
  // Reports ended pulls. Returns true if any had ended.
  bool report(ConnectionEvents& events);
  bool empty() const {
    return pulls_.empty();
  }

 private:
  struct Pull {
    uint64_t id = 0;
    uint64_t peerId = 0;
    MemoryView destination;
    uint64_t source = 0;
    size_t claimed = 0;
    int running = 0;
    int delay = 0;
    Status stopped; // why the pull ends early
  };
  MemoryView sourceOf(const Pull& pull) const;

  const ExposedAs exposed_;
  std::deque<Pull> pulls_;
};

} // namespace dlslime::loopback
