#include "torch_ext/one_sided/part_spec.h"

#include <torch/csrc/autograd/python_variable.h>

namespace dlslime {

namespace py = pybind11;

void raise(const Status& status) {
  const auto text = "dlslime: " + status.message();
  if (status.code() == ErrorCode::kInvalidArgument) {
    throw py::value_error(text);
  }
  const bool late = status.code() == ErrorCode::kTimeout;
  const py::object type = late
      ? py::reinterpret_borrow<py::object>(PyExc_TimeoutError)
      : py::module_::import("torch.distributed").attr("DistBackendError");
  PyErr_SetString(type.ptr(), text.c_str());
  throw py::error_already_set();
}

std::string kindOf(const py::handle& value) {
  return std::string("an object of type ") + Py_TYPE(value.ptr())->tp_name;
}

int64_t integerOf(const py::handle& value, const char* what) {
  const auto index =
      py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!index) {
    PyErr_Clear();
    throw py::type_error(
        "dlslime: " + std::string(what) + " is an integer, not " +
        kindOf(value));
  }
  int overflow = 0;
  const auto number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) {
    raise(
        {ErrorCode::kInvalidArgument,
         std::string(what) + " is an integer of 64 bits, and this one is too " +
             (overflow > 0 ? "large" : "small")});
  }
  return number;
}

namespace {

constexpr auto kPieceNumber =
    "an offset or length of a piece (local offset, remote offset, bytes)";

int64_t pieceNumber(const py::handle& value) {
  return integerOf(value, kPieceNumber);
}

at::Tensor tensorOf(const py::handle& value) {
  if (!THPVariable_Check(value.ptr())) {
    throw py::type_error(
        "dlslime: a tuple is a batch of three arrays, and not with " +
        kindOf(value) + "; pieces go in a list");
  }
  return THPVariable_Unpack(value.ptr());
}

// Converts to int64. Raises ValueError unless the tensor has integers, on the
// CPU, and the given number of dimensions.
at::Tensor integers(const at::Tensor& tensor, int64_t dimensions) {
  const auto type = tensor.scalar_type();
  const bool dense =
      tensor.layout() == at::kStrided && tensor.device().is_cpu();
  if ((type != at::kLong && type != at::kInt) || tensor.dim() != dimensions ||
      !dense) {
    raise(
        {ErrorCode::kInvalidArgument,
         "offsets, lengths and pages are arrays of int64 or int32, on the CPU: "
         "of one dimension, or [N, 3] for pieces; this one is of " +
             std::string(c10::toString(type)) + " and of " +
             std::to_string(tensor.dim()) + " dimensions, on " +
             tensor.device().str()});
  }
  return tensor.to(at::kLong).contiguous();
}

std::span<const int64_t> spanOf(const at::Tensor& numbers) {
  return {
      numbers.const_data_ptr<int64_t>(), static_cast<size_t>(numbers.numel())};
}

void requireEqual(size_t one, size_t other, size_t third) {
  if (one != other || one != third) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "arrays of one batch must be of one length, not " +
            std::to_string(one) + ", " + std::to_string(other) + " and " +
            std::to_string(third));
  }
}

} // namespace

PartSpec::PartSpec(
    const py::handle& local,
    const py::handle& remote,
    const py::handle& pieces)
    : local_(argument<PyRegion>(
                 local,
                 "the local memory is a Region, which register() returns")
                 .region),
      remote_(argument<PyRemote>(
                  remote,
                  "the peer's memory is a RemoteRegion, which import_region() "
                  "returns")
                  .handle) {
  if (pieces.is_none()) {
    whole_ = true;
  } else if (py::isinstance<py::tuple>(pieces)) {
    readTuple(py::reinterpret_borrow<py::tuple>(pieces));
  } else if (THPVariable_Check(pieces.ptr())) {
    readRows(THPVariable_Unpack(pieces.ptr()));
  } else {
    readList(py::reinterpret_borrow<py::sequence>(pieces));
  }
}

void PartSpec::build(bool write, std::vector<Transfer::Part>& parts) const {
  PieceBuilder builder(*local_, *remote_, write, first_.size());
  if (whole_) {
    requireEqual(local_->view().size, remote_->size, remote_->size);
    builder.add(0, 0, static_cast<int64_t>(remote_->size));
  } else if (pageBytes_ > 0) {
    addPages(builder);
  } else {
    requireEqual(first_.size(), second_.size(), third_.size());
    for (size_t i = 0; i < first_.size(); ++i) {
      builder.add(first_[i], second_[i], third_[i]);
    }
  }
  if (auto pieces = builder.take(); !pieces.empty()) {
    parts.push_back({local_, remote_, std::move(pieces)});
  }
}

// Reads (local offsets, remote offsets, lengths) or (local pages, remote pages,
// bytes of a page).
void PartSpec::readTuple(const py::tuple& tuple) {
  if (tuple.size() != 3) {
    raise(
        {ErrorCode::kInvalidArgument,
         "a batch of arrays is (local offsets, remote offsets, lengths), or "
         "(local pages, remote pages, bytes of a page), and not of " +
             std::to_string(tuple.size()) + " entries"});
  }
  tensors_ = {integers(tensorOf(tuple[0]), 1), integers(tensorOf(tuple[1]), 1)};
  if (py::isinstance<py::int_>(tuple[2])) {
    pageBytes_ = integerOf(tuple[2], "the bytes of a page");
    if (pageBytes_ <= 0) {
      raise(
          {ErrorCode::kInvalidArgument,
           "a page of " + std::to_string(pageBytes_) +
               " bytes: a page has at least 1 byte"});
    }
  } else {
    tensors_.push_back(integers(tensorOf(tuple[2]), 1));
    third_ = spanOf(tensors_[2]);
  }
  first_ = spanOf(tensors_[0]);
  second_ = spanOf(tensors_[1]);
}

// Reads an [N, 3] tensor, with a piece in each row.
void PartSpec::readRows(const at::Tensor& rows) {
  const auto numbers = integers(rows, 2);
  if (numbers.size(1) != 3) {
    raise(
        {ErrorCode::kInvalidArgument,
         "an array of pieces is [N, 3], not [N, " +
             std::to_string(numbers.size(1)) + "]"});
  }
  for (int64_t i = 0; i < 3; ++i) {
    tensors_.push_back(numbers.select(1, i).contiguous());
  }
  first_ = spanOf(tensors_[0]);
  second_ = spanOf(tensors_[1]);
  third_ = spanOf(tensors_[2]);
}

void PartSpec::readList(const py::sequence& list) {
  const auto count = list.size();
  for (auto& column : columns_) {
    column.reserve(count);
  }
  for (const auto& entry : list) {
    if (PyTuple_CheckExact(entry.ptr()) && PyTuple_GET_SIZE(entry.ptr()) == 3) {
      for (Py_ssize_t i = 0; i < 3; ++i) {
        columns_[i].push_back(pieceNumber(PyTuple_GET_ITEM(entry.ptr(), i)));
      }
      continue;
    }
    const auto piece = py::reinterpret_borrow<py::sequence>(entry);
    if (!py::isinstance<py::sequence>(entry) || piece.size() != 3) {
      raise(
          {ErrorCode::kInvalidArgument,
           "a piece is (local offset, remote offset, bytes), not " +
               kindOf(entry)});
    }
    for (size_t i = 0; i < 3; ++i) {
      columns_[i].push_back(pieceNumber(piece[i]));
    }
  }
  first_ = columns_[0];
  second_ = columns_[1];
  third_ = columns_[2];
}

void PartSpec::addPages(PieceBuilder& builder) const {
  requireEqual(first_.size(), second_.size(), second_.size());
  const auto pageBytes = static_cast<uint64_t>(pageBytes_);
  const uint64_t pages[] = {
      local_->view().size / pageBytes, remote_->size / pageBytes};
  for (size_t i = 0; i < first_.size(); ++i) {
    // Negative numbers become huge, and are refused.
    if (static_cast<uint64_t>(first_[i]) >= pages[0]) {
      refusePage(first_[i], "the local " + local_->describe(), pages[0]);
    }
    if (static_cast<uint64_t>(second_[i]) >= pages[1]) {
      refusePage(second_[i], "the remote " + remote_->describe(), pages[1]);
    }
    builder.add(first_[i] * pageBytes_, second_[i] * pageBytes_, pageBytes_);
  }
}

void PartSpec::refusePage(
    int64_t page,
    const std::string& where,
    uint64_t pages) const {
  throw Error(
      ErrorCode::kInvalidArgument,
      "page " + std::to_string(page) + " of " + std::to_string(pageBytes_) +
          " bytes is outside of " + where + ", which has " +
          std::to_string(pages) + " of them");
}

} // namespace dlslime
