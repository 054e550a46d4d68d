#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace dlslime {

// Python's exceptions by what went wrong: the caller's arguments, time, or the
// peer and the way to it.
[[noreturn]] void raise(const Status& status);

// A region, and the engine that has it.
struct PyRegion {
  std::shared_ptr<Engine> engine;
  RegionPtr region;
};
using RemotePtr = std::shared_ptr<const RegionHandle>;
struct PyRemote {
  RemotePtr handle;
};

// The pieces of one part, as Python gives them. Those given as arrays are read
// without the GIL.
class PartSpec {
 public:
  // Raises ValueError.
  PartSpec(
      const PyRegion& local,
      RemotePtr remote,
      const pybind11::object& pieces);
  // May be called without the GIL. Throws Error.
  void build(bool write, std::vector<Transfer::Part>& parts) const;

 private:
  void readTuple(const pybind11::tuple& tuple);
  void readList(const pybind11::sequence& list);
  void addPages(PieceBuilder& builder) const;

  const RegionPtr local_;
  const RemotePtr remote_;
  bool whole_ = false;
  int64_t pageBytes_ = 0;
  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> columns_[3];
  std::span<const int64_t> first_, second_, third_;
};

} // namespace dlslime
