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

// How the two engines of a cycle reach each other, and where their memory is.
struct FaultWay {
  const char* name;
  RoutePolicy policy = RoutePolicy::kAuto;
  bool apart = false; // on hosts of their own
  bool gpu = false; // all memory is of a GPU
  bool crossMemoryAttach = true;
};
inline void PrintTo(const FaultWay& way, std::ostream* out) {
  *out << way.name;
}

// One life of two engines: they start, join a group, exchange messages, read
// and write registered memory, and end. Whatever fails, it goes on with all
// that is left to do.
class Cycle {
 public:
  // `allocations`: operator new may fail.
  Cycle(const FaultWay& way, bool allocations);
  ~Cycle();
  Cycle(const Cycle&) = delete;
  Cycle& operator=(const Cycle&) = delete;

  void run();
  // In the story, of an operation that nothing has ended in time.
  static constexpr const char* kTimedOut = "TIMED OUT";
  // What each step came to that did not go well.
  const std::string& story() const {
    return story_;
  }
  // What must not be, whatever failed.
  const std::string& complaints() const {
    return complaints_;
  }
  // "shm"; of the connection that the last message went by.
  const std::string& route() const {
    return route_;
  }

 private:
  // Bytes of a processor or of a GPU, and the owner that frees them.
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
