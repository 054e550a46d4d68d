#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace dlslime {

// Python's exceptions by what went wrong: the caller's arguments, time, or the
// peer and the way to it.
[[noreturn]] void raise(const Status& status);

// What a caller has given, named in a few words: a whole list, or a handle that
// gives access to memory, does not belong into a text.
std::string kindOf(const pybind11::handle& value);
// Raises TypeError if it is of another kind, and ValueError if it is too large.
int64_t integerOf(const pybind11::handle& value, const char* what);

// One of our own objects that Python gives back; raises TypeError.
template <typename T>
const T& argument(const pybind11::handle& value, const char* what) {
  if (!pybind11::isinstance<T>(value)) {
    throw pybind11::type_error(
        "dlslime: " + std::string(what) + ", not " + kindOf(value));
  }
  return pybind11::cast<const T&>(value);
}

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
  // Raises ValueError, or TypeError: they are not a region of ours, a region of
  // a peer and pieces.
  PartSpec(
      const pybind11::handle& local,
      const pybind11::handle& remote,
      const pybind11::handle& pieces);
  // May be called without the GIL. Throws Error.
  void build(bool write, std::vector<Transfer::Part>& parts) const;

 private:
  void readTuple(const pybind11::tuple& tuple);
  void readRows(const at::Tensor& rows);
  void readList(const pybind11::sequence& list);
  void addPages(PieceBuilder& builder) const;
  [[noreturn]] void
  refusePage(int64_t page, const std::string& where, uint64_t pages) const;

  const RegionPtr local_;
  const RemotePtr remote_;
  bool whole_ = false;
  int64_t pageBytes_ = 0;
  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> columns_[3];
  std::span<const int64_t> first_, second_, third_;
};

} // namespace dlslime
