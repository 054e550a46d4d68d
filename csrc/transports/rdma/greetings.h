#pragma once

#include <functional>

#include "base/clock.h"
#include "transports/rdma/rail_set.h"

namespace dlslime::rdma {

// Greets the peer over each rail before the connection is used, and drops rails
// that no greeting passes: only sending tells whether a path works.
class Greetings final : public VerifyAbility {
 public:
  // `keep` drops all rails but those with a bit in its argument.
  using KeepRails = std::function<void(uint32_t numbers)>;

  Greetings(RailSet& rails, KeepRails keep)
      : rails_(rails), keep_(std::move(keep)) {}

  // Sends the greetings of the initiator.
  void post();
  bool verify(Bytes& result) override;
  void confirm(ByteSpan result) override;

 private:
  void postOver(Rail& rail);
  static void look(Rail& rail);
  std::string problems() const;

  RailSet& rails_;
  const KeepRails keep_;
  // Deadline for the remaining rails, set once the first greeting has passed.
  TimePoint verifyBy_ = never();
};

} // namespace dlslime::rdma
