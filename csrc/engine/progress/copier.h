#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "interface/transport.h"

namespace dlslime {

class PeerChannel;

// A claimed copy between memory of this process and memory of a peer.
struct ClaimedCopy {
  CopyJob job;
  std::shared_ptr<PeerChannel> channel;
};

// Makes copies on separate threads, because a peer can keep a copy from
// returning: the peer's memory may be provided by a further process or by a
// hanging file system. A stuck copy holds up only its own pair: after
// kPatience, a further thread makes the copies of the remaining pairs. Any
// thread may call.
class Copier {
 public:
  static constexpr milliseconds kPatience{100};

  // Tells the engine of a finished copy. Returns the next copy to be made at
  // once, if any; never a copy unless `more` are wanted.
  using Finish = std::function<
      std::optional<ClaimedCopy>(const ClaimedCopy& made, bool more)>;
  explicit Copier(Finish finish);
  ~Copier();

  // True while a copy is waiting for a thread, being made, or being reported to
  // the engine; cheap.
  bool busy() const;
  // True if give() may be called: a thread is idle, or a further thread may be
  // started.
  bool free() const;
  // Hands a copy to a thread. False: no thread can be started, and the copy is
  // still the caller's.
  [[nodiscard]] bool give(ClaimedCopy& copy);
  // Time to offer refused copies again; never() while no copy is being made.
  TimePoint lookAgain() const;
  // Number of copies under way for longer than kPatience.
  size_t stuck() const;
  // Ends the threads. Threads still copying after `patience` are left behind
  // and keep what their copies need; Finish is not called any more.
  void stop(milliseconds patience);

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

} // namespace dlslime
