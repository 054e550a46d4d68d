#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace dlslime {

// Raises the Python exception for an error: ValueError for bad arguments,
// TimeoutError for a time-out, else DistBackendError for the peer and the
// connection.
[[noreturn]] void raise(const Status& status);

// Names the type of a value given by the caller. The value itself does not
// belong into a text: a list may be long, and a handle gives access to memory.
std::string kindOf(const pybind11::handle& value);
// Raises TypeError unless the value is an integer, and ValueError if the
// integer does not fit into 64 bits.
int64_t integerOf(const pybind11::handle& value, const char* what);

// Returns the C++ object of class T behind a Python value. Raises TypeError for
// any other class.
template <typename T>
const T& argument(const pybind11::handle& value, const char* what) {
  if (!pybind11::isinstance<T>(value)) {
    throw pybind11::type_error(
        "dlslime: " + std::string(what) + ", not " + kindOf(value));
  }
  return pybind11::cast<const T&>(value);
}

// A region, and the engine that has registered the memory.
struct PyRegion {
  std::shared_ptr<Engine> engine;
  RegionPtr region;
};
using RemotePtr = std::shared_ptr<const RegionHandle>;
struct PyRemote {
  RemotePtr handle;
};

// Pieces of a part of a transfer, as given by Python. Pieces given as arrays
// are read without the GIL.
class PartSpec {
 public:
  // Raises TypeError or ValueError unless the arguments are a Region, a
  // RemoteRegion and pieces.
  PartSpec(
      const pybind11::handle& local,
      const pybind11::handle& remote,
      const pybind11::handle& pieces);
  // Appends the part to `parts`, unless empty. May be called without the GIL.
  // Throws Error.
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
