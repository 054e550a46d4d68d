#pragma once

#include <functional>
#include <memory>

#include "engine/connect/wireup.h"
#include "engine/core/driver.h"
#include "engine/peer/group_report.h"

namespace dlslime {

// Groups from join() to leave(), and the ends of their operations. Any thread
// may call; the functions are explained at Engine.
class GroupLife {
 public:
  GroupLife(EngineState& state, Driver& driver, WireUp& wireUp)
      : state_(state), driver_(driver), wireUp_(wireUp) {}

  std::shared_ptr<Group> join(GroupOptions options);
  PeerReport explain(
      Group& group,
      int rank,
      TimePoint deadline,
      const std::function<void()>& meanwhile);
  void pair(Group& group, int rank, const AddressRecord& record, Group& spare);
  void cancel(Group& group, const OperationPtr& operation, const Status& why);
  void abandon(Group& group, const OperationPtr& operation, const Status& why);
  void abort(Group& group, const Status& why);
  void leave(Group& group);
  void keepGuest(const std::shared_ptr<Group>& guest);
  void lingerAll();
  bool hasFailedPeer(Group& group);

 private:
  void cancelLocked(
      Group& group,
      const OperationPtr& operation,
      const Status& why) REQUIRES(kEngineLock);
  bool isClosed(Group& group);
  void linger(Group& group, TimePoint deadline);
  bool allSent();

  EngineState& state_;
  Driver& driver_;
  WireUp& wireUp_;
};

} // namespace dlslime
