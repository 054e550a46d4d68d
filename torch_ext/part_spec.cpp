#include "torch_ext/part_spec.h"

#include <limits>

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

namespace {

int64_t integerOf(const py::handle& value) {
  if (PyLong_CheckExact(value.ptr())) {
    int overflow = 0;
    const auto number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow == 0) {
      return number;
    }
  }
  try {
    return py::cast<int64_t>(value);
  } catch (const py::cast_error&) {
    raise(
        {ErrorCode::kInvalidArgument,
         "a piece is (local offset, remote offset, bytes), three integers of "
         "64 bits, and not with " +
             std::string(py::repr(value))});
  }
}

at::Tensor tensorOf(const py::handle& value) {
  try {
    return py::cast<at::Tensor>(value);
  } catch (const py::cast_error&) {
    raise(
        {ErrorCode::kInvalidArgument,
         "a tuple is a batch of three arrays, and not with " +
             std::string(py::repr(value)) + "; pieces go in a list"});
  }
}

// One dimension of int64, on the CPU.
std::span<const int64_t> integers(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kLong || tensor.dim() != 1 ||
      !tensor.device().is_cpu() || !tensor.is_contiguous()) {
    raise(
        {ErrorCode::kInvalidArgument,
         "offsets, lengths and indices are contiguous int64 arrays of one "
         "dimension, on the CPU"});
  }
  return {
      tensor.const_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
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
    const PyRegion& local,
    RemotePtr remote,
    const py::object& pieces)
    : local_(local.region), remote_(std::move(remote)) {
  if (pieces.is_none()) {
    whole_ = true;
  } else if (py::isinstance<py::tuple>(pieces)) {
    readTuple(py::reinterpret_borrow<py::tuple>(pieces));
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

// (offsets, offsets, lengths) or (index, index, page bytes).
void PartSpec::readTuple(const py::tuple& tuple) {
  if (tuple.size() != 3) {
    raise(
        {ErrorCode::kInvalidArgument,
         "a batch of arrays is (local offsets, remote offsets, lengths), or "
         "(local pages, remote pages, bytes of a page)"});
  }
  tensors_ = {tensorOf(tuple[0]), tensorOf(tuple[1])};
  if (py::isinstance<py::int_>(tuple[2])) {
    pageBytes_ = tuple[2].cast<int64_t>();
    if (pageBytes_ <= 0) {
      raise(
          {ErrorCode::kInvalidArgument,
           "a page of " + std::to_string(pageBytes_) + " bytes"});
    }
  } else {
    tensors_.push_back(tensorOf(tuple[2]));
    third_ = integers(tensors_[2]);
  }
  first_ = integers(tensors_[0]);
  second_ = integers(tensors_[1]);
}

void PartSpec::readList(const py::sequence& list) {
  const auto count = list.size();
  for (auto& column : columns_) {
    column.reserve(count);
  }
  for (const auto& entry : list) {
    if (PyTuple_CheckExact(entry.ptr()) && PyTuple_GET_SIZE(entry.ptr()) == 3) {
      for (Py_ssize_t i = 0; i < 3; ++i) {
        columns_[i].push_back(integerOf(PyTuple_GET_ITEM(entry.ptr(), i)));
      }
      continue;
    }
    const auto piece = py::reinterpret_borrow<py::sequence>(entry);
    if (!py::isinstance<py::sequence>(entry) || piece.size() != 3) {
      raise(
          {ErrorCode::kInvalidArgument,
           "a piece is (local offset, remote offset, bytes)"});
    }
    for (size_t i = 0; i < 3; ++i) {
      columns_[i].push_back(integerOf(piece[i]));
    }
  }
  first_ = columns_[0];
  second_ = columns_[1];
  third_ = columns_[2];
}

void PartSpec::addPages(PieceBuilder& builder) const {
  requireEqual(first_.size(), second_.size(), second_.size());
  // What is beyond any region stays so when it is multiplied.
  const auto most = std::numeric_limits<int64_t>::max() / pageBytes_ - 1;
  const auto offset = [&](int64_t page) {
    return page < 0 || page > most ? int64_t{-1} : page * pageBytes_;
  };
  for (size_t i = 0; i < first_.size(); ++i) {
    builder.add(offset(first_[i]), offset(second_[i]), pageBytes_);
  }
}

} // namespace dlslime
