#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fakes/gpu/gpu_memory.h"
#include "fakes/peers/test_transfer.h"
#include "fakes/world.h"
#include "faults/faulty_helpers.h"
#include "faults/faulty_verbs.h"

namespace dlslime::testing {

// How the two engines of a cycle connect, and the place of their memory.
struct FaultWay {
  const char* name;
  RoutePolicy policy = RoutePolicy::kAuto;
  bool apart = false; // on two hosts
  bool gpu = false; // all memory is of a GPU
  bool crossMemoryAttach = true;
};
inline void PrintTo(const FaultWay& way, std::ostream* out) {
  *out << way.name;
}

// A life of two engines: start, join of a group, messages, reads and writes of
// registered memory, end. After a failure the cycle goes on with all remaining
// steps.
class Cycle {
 public:
  // `allocations`: operator new may fail.
  Cycle(const FaultWay& way, bool allocations);
  ~Cycle();
  Cycle(const Cycle&) = delete;
  Cycle& operator=(const Cycle&) = delete;

  void run();
  // In the story: an operation that did not end in time.
  static constexpr const char* kTimedOut = "TIMED OUT";
  // Lists the steps that failed, with the outcome.
  const std::string& story() const {
    return story_;
  }
  // Lists violations, not to be excused by any fault.
  const std::string& complaints() const {
    return complaints_;
  }
  // Returns the route of the last message ("shm").
  const std::string& route() const {
    return route_;
  }

 private:
  // Bytes of a processor or of a GPU, and the owner that frees the bytes.
  struct Place {
    MemoryView view;
    std::shared_ptr<Bytes> bytes;
    GpuSide* gpu = nullptr;
    Bytes content() const;
  };
  class PlacedOperation;
  struct Side {
    Node node;
    std::unique_ptr<GpuSide> gpu;
    Place memory; // registered
    RegionPtr region;
  };

  Config configOf(int rank) const;
  GroupOptions optionsOf(int rank) const;
  Place place(int rank, const Bytes& bytes);
  bool step(const std::string& what, const std::function<void()>& call);
  void begin(int rank);
  void traffic();
  void message(int from, size_t size, uint32_t tag);
  void registerMemory(int rank);
  void initiator();
  void transfer(Operation::Kind kind, int64_t at, int64_t size);
  void deregister(int rank);
  void end(int rank);
  bool finish(
      int rank,
      const OperationPtr& operation,
      const std::string& what,
      int patience);
  bool wait(int rank, const OperationPtr& operation, int patience);
  void complain(const std::string& text);

  const FaultWay way_;
  const bool allocations_;
  std::string story_, complaints_, route_;
  std::optional<FakeGpu> fake_;
  FaultyFabric fabric_;
  std::shared_ptr<FaultyStore> store_ = std::make_shared<FaultyStore>();
  std::shared_ptr<FaultyCarriers> carriers_ =
      std::make_shared<FaultyCarriers>();
  Side sides_[2];
  std::vector<cuda::DevicePointer> gpuMemory_; // freed at the end
};

} // namespace dlslime::testing
