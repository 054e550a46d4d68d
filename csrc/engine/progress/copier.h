#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "interface/transport.h"

namespace dlslime {

class PeerChannel;

// A copy between this process's memory and a peer's, that has been claimed.
struct ClaimedCopy {
  CopyJob job;
  std::shared_ptr<PeerChannel> channel;
};

// Makes copies on a thread of its own: a peer can keep one from returning
// (memory that another process is to provide, a file system that hangs), which
// then holds up this pair alone. When that has lasted for kPatience, another
// thread makes the copies of the other pairs. Any thread.
class Copier {
 public:
  static constexpr milliseconds kPatience{100};

  // Tells the engine of a copy that was made. Returns the next one, if there is
  // one to be made at once; none unless `more` are wanted.
  using Finish = std::function<
      std::optional<ClaimedCopy>(const ClaimedCopy& made, bool more)>;
  explicit Copier(Finish finish);
  ~Copier();

  // Some copy is being made. Cheap.
  bool busy() const;
  // Whether give() may be called: a thread is free, or there could be one.
  bool free() const;
  // False: no thread can be started; the copy is still the caller's.
  [[nodiscard]] bool give(ClaimedCopy& copy);
  // When to look again at what was not given away; never() while no copy is
  // being made.
  TimePoint lookAgain() const;
  // Copies that have been under way for longer than kPatience.
  size_t stuck() const;
  // Ends the threads. Those that have not come back within `patience` are left
  // behind with what they hold; finish() is called no more.
  void stop(milliseconds patience);

 private:
  bool addWorker();
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

} // namespace dlslime
