#include "engine/transports.h"
#include "torch_ext/backend.h"
#include "torch_ext/binding.h"
#include "torch_ext/tensor_view.h"

namespace dlslime {

namespace {

PyRegion registerTensor(const at::Tensor& tensor, const std::string& name) {
  checkedMessage("registration", {tensor});
  const auto view = bytesOf(tensor);
  return released([&] {
    auto engine = acquireEngine();
    auto region = engine->registerMemory(
        view, name, std::make_shared<c10::Storage>(tensor.storage()));
    return PyRegion{std::move(engine), std::move(region)};
  });
}

PyRegion registerRaw(uint64_t address, uint64_t size, const std::string& name) {
  if (address == 0 || address + size < address) {
    raise(
        {ErrorCode::kInvalidArgument,
         "memory of " + std::to_string(size) + " bytes at address " +
             std::to_string(address) + " can't be"});
  }
  return released([&] {
    auto engine = acquireEngine();
    auto* const data = reinterpret_cast<std::byte*>(address);
    const MemoryView view{data, size, nullptr, deviceOf(data)};
    auto region = engine->registerMemory(view, name, nullptr);
    return PyRegion{std::move(engine), std::move(region)};
  });
}

PyRemote importRegion(const py::bytes& bytes) {
  try {
    return {std::make_shared<const RegionHandle>(decodeRegion(spanOf(bytes)))};
  } catch (const Error& error) {
    raise({ErrorCode::kInvalidArgument, error.what()});
  }
}

c10::Device deviceOfRegion(const PyRegion& region) {
  const auto view = region.region->view();
  if (!view.onDevice()) {
    return c10::DeviceType::CPU;
  }
  const auto index = static_cast<c10::DeviceIndex>(view.device);
  return {c10::DeviceType::CUDA, index};
}

// A tensor of bytes over a part of it, which does not keep it.
at::Tensor bytesAt(const PyRegion& region, uint64_t offset, uint64_t nbytes) {
  const auto view = region.region->view();
  if (offset > view.size || nbytes > view.size - offset) {
    raise(
        {ErrorCode::kInvalidArgument,
         "offset " + std::to_string(offset) + " and length " +
             std::to_string(nbytes) + " are outside of " +
             region.region->describe()});
  }
  const auto device = deviceOfRegion(region);
  return at::for_blob(view.data + offset, {static_cast<int64_t>(nbytes)})
      .options(at::TensorOptions().dtype(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

} // namespace

void bindRegions(py::module& module) {
  py::class_<PyRegion>(module, "Region")
      .def_static(
          "of_tensor", &registerTensor, py::arg("tensor"), py::arg("name"))
      .def_static(
          "of_memory",
          &registerRaw,
          py::arg("address"),
          py::arg("nbytes"),
          py::arg("name"))
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
      .def_property_readonly("device", &deviceOfRegion)
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
