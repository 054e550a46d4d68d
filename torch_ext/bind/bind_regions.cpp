#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "torch_ext/bind/binding.h"
#include "torch_ext/c10d/backend.h"
#include "torch_ext/support/tensor_view.h"

namespace dlslime {

namespace {

PyRegion registered(
    MemoryView view,
    const std::string& name,
    bool readOnly,
    std::shared_ptr<void> keeper) {
  view.readOnly = readOnly;
  return released([&] {
    auto engine = acquireEngine();
    auto region = engine->registerMemory(view, name, std::move(keeper));
    return PyRegion{std::move(engine), std::move(region)};
  });
}

PyRegion registerTensor(
    const at::Tensor& tensor,
    const std::string& name,
    bool readOnly) {
  checkedMessage("registration", {tensor});
  return registered(
      bytesOf(tensor),
      name,
      readOnly,
      sharedWithPython(c10::Storage(tensor.storage())));
}

// Whether the whole range is mapped. For msync(MS_ASYNC), the kernel only walks
// the list of mappings.
bool isMapped(uint64_t address, uint64_t size) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto begin = address / page * page;
  auto* const first = reinterpret_cast<void*>(begin);
  return size == 0 || msync(first, address + size - begin, MS_ASYNC) == 0 ||
      errno != ENOMEM;
}

// End of the user addresses of a process, on processors with the most address
// bits (57).
constexpr uint64_t kEndOfAddresses = uint64_t{1} << 56;

// Returns memory of this process given by address alone. Raises ValueError
// unless the whole range is mapped.
MemoryView memoryAt(const py::object& address, const py::object& size) {
  const auto refuse = [&](const char* why) {
    raise(
        {ErrorCode::kInvalidArgument,
         "memory of " + std::string(py::str(size)) + " bytes at address " +
             std::string(py::str(address)) + " does not exist: " + why});
  };
  uint64_t begin = 0, bytes = 0;
  try {
    begin = address.cast<uint64_t>();
    bytes = size.cast<uint64_t>();
  } catch (const py::cast_error&) {
    refuse("neither number may be negative or longer than 64 bits");
  }
  if (begin == 0 || begin >= kEndOfAddresses ||
      bytes > kEndOfAddresses - begin) {
    refuse("no process has memory there");
  }
  auto* const data = reinterpret_cast<std::byte*>(begin);
  MemoryView view{data, bytes, nullptr, Engine::deviceOf(data)};
  view.mayFault = !view.onDevice();
  if (!view.onDevice() && !isMapped(begin, bytes)) {
    refuse("not all of the memory is mapped in this process");
  }
  return view;
}

PyRegion registerRaw(
    const py::object& address,
    const py::object& size,
    const std::string& name,
    bool readOnly) {
  return registered(memoryAt(address, size), name, readOnly, nullptr);
}

// Exported buffer of a Python object. The memory stays in place until the
// destructor, which takes the GIL.
class HeldBuffer {
 public:
  explicit HeldBuffer(const py::object& exporter) {
    if (PyObject_GetBuffer(exporter.ptr(), &buffer_, PyBUF_SIMPLE) != 0) {
      throw py::error_already_set();
    }
  }
  ~HeldBuffer() {
    if (const GilScope gil; gil) {
      PyBuffer_Release(&buffer_);
    }
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;

  MemoryView view() const {
    MemoryView view{
        static_cast<std::byte*>(buffer_.buf), static_cast<size_t>(buffer_.len)};
    view.mayFault = true;
    return view;
  }

 private:
  Py_buffer buffer_{};
};

PyRegion registerBuffer(
    const py::object& exporter,
    const std::string& name,
    bool readOnly) {
  auto held = std::make_shared<HeldBuffer>(exporter);
  const auto view = held->view();
  return registered(view, name, readOnly, std::move(held));
}

PyRemote importRegion(const py::bytes& bytes) {
  try {
    return {std::make_shared<const RegionHandle>(decodeRegion(spanOf(bytes)))};
  } catch (const Error& error) {
    raise({ErrorCode::kInvalidArgument, error.what()});
  }
}

c10::Device torchDeviceOf(const MemoryView& view) {
  if (!view.onDevice()) {
    return c10::DeviceType::CPU;
  }
  const auto index = static_cast<c10::DeviceIndex>(view.device);
  return {c10::DeviceType::CUDA, index};
}

// Returns a tensor of bytes over a part of the memory. The tensor does not keep
// the memory alive.
at::Tensor tensorOver(const MemoryView& view, uint64_t offset, uint64_t bytes) {
  const auto device = torchDeviceOf(view);
  return at::for_blob(view.data + offset, {static_cast<int64_t>(bytes)})
      .options(at::TensorOptions().dtype(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

at::Tensor bytesAt(
    const PyRegion& region,
    const py::object& from,
    const py::object& length) {
  const auto view = region.region->view();
  // Negative numbers become huge, and are refused.
  const auto offset = static_cast<uint64_t>(integerOf(from, "an offset"));
  const auto nbytes = static_cast<uint64_t>(integerOf(length, "a length"));
  if (offset > view.size || nbytes > view.size - offset) {
    raise(
        {ErrorCode::kInvalidArgument,
         "offset " + std::to_string(offset) + " and length " +
             std::to_string(nbytes) + " are outside of " +
             region.region->describe()});
  }
  return tensorOver(view, offset, nbytes);
}

at::Tensor bytesAtAddress(const py::object& address, const py::object& size) {
  const auto view = memoryAt(address, size);
  return tensorOver(view, 0, view.size);
}

} // namespace

void bindRegions(py::module& module) {
  module.def(
      "bytes_at_address",
      &bytesAtAddress,
      py::arg("address"),
      py::arg("nbytes"));
  py::class_<PyRegion>(module, "Region")
      .def_static(
          "of_tensor",
          &registerTensor,
          py::arg("tensor"),
          py::arg("name"),
          py::arg("read_only"))
      .def_static(
          "of_memory",
          &registerRaw,
          py::arg("address"),
          py::arg("nbytes"),
          py::arg("name"),
          py::arg("read_only"))
      .def_static(
          "of_buffer",
          &registerBuffer,
          py::arg("exporter"),
          py::arg("name"),
          py::arg("read_only"))
      .def(
          "export",
          [](const PyRegion& region) {
            return toPython(encode(region.region->handle()));
          })
      .def_property_readonly(
          "address",
          [](const PyRegion& region) {
            return region.region->handle().address;
          })
      .def_property_readonly(
          "nbytes",
          [](const PyRegion& region) { return region.region->handle().size; })
      .def_property_readonly(
          "device",
          [](const PyRegion& region) {
            return torchDeviceOf(region.region->view());
          })
      .def("bytes_at", &bytesAt, py::arg("offset"), py::arg("nbytes"))
      .def_property_readonly(
          "name",
          [](const PyRegion& region) { return region.region->handle().name; })
      .def(
          "deregister",
          [](const PyRegion& region, double timeout) {
            const auto limit = checkedSeconds("deregister()'s", timeout, true);
            released([&] {
              region.engine->deregister(region.region, deadlineAfter(limit));
            });
          },
          py::arg("timeout") = 10.0);
  py::class_<PyRemote>(module, "RemoteRegion")
      .def(py::init(&importRegion), py::arg("exported"))
      .def_property_readonly(
          "address",
          [](const PyRemote& remote) { return remote.handle->address; })
      .def_property_readonly(
          "nbytes", [](const PyRemote& remote) { return remote.handle->size; })
      .def_property_readonly(
          "name", [](const PyRemote& remote) { return remote.handle->name; })
      .def_property_readonly(
          "pid", [](const PyRemote& remote) { return remote.handle->pid; })
      .def_property_readonly(
          "host", [](const PyRemote& remote) { return remote.handle->host; });
}

} // namespace dlslime
