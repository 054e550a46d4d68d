#pragma once

#include "engine/connect/wireup.h"
#include "engine/core/driver.h"
#include "engine/record/times_report.h"

namespace dlslime {

// Posts operations of the program: prepares their memory outside of the lock,
// and has the ranks in need connected. Any thread may call.
class Posting {
 public:
  Posting(EngineState& state, Driver& driver, WireUp& wireUp)
      : state_(state), driver_(driver), wireUp_(wireUp) {}

  void send(Group& group, const OperationPtr& operation);
  void receive(Group& group, const OperationPtr& operation);
  void transfer(Group& group, const TransferPtr& transfer);

  FlightLog flightLog();
  std::vector<OperationReport> operationReports();

 private:
  void prepare(Group& group, Operation& operation);
  void meetStream(Operation& operation);
  void prepareMemory(Group& group, Operation& operation);
  void registerHere(Group& group, const Transfer& transfer);
  // These two leave or enter a lock of their callers, of which the analysis
  // knows nothing inside of them.
  void enterPrepared(EngineLock& lock, Group& group, Operation& operation)
      REQUIRES(kEngineLock) NO_THREAD_SAFETY_ANALYSIS;
  void afterPost(EngineLock& lock, Group& group, const Operation& operation)
      REQUIRES(kEngineLock) NO_THREAD_SAFETY_ANALYSIS;

  EngineState& state_;
  Driver& driver_;
  WireUp& wireUp_;
  uint64_t sends_ GUARDED_BY(kEngineLock) = 0;
};

} // namespace dlslime
