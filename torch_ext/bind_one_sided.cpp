#include <torch/csrc/utils/pybind.h>

#include "torch_ext/backend.h"
#include "torch_ext/gil.h"
#include "torch_ext/hub_link.h"
#include "torch_ext/part_spec.h"
#include "torch_ext/peer_link.h"
#include "torch_ext/tensor_view.h"

namespace dlslime {

namespace py = pybind11;

namespace {

// Without the GIL; what it throws becomes a Python exception.
template <typename Body>
auto released(const Body& body) {
  Status problem;
  try {
    const py::gil_scoped_release release;
    return body();
  } catch (const Error& error) {
    problem = error.status();
  }
  raise(problem);
}

ByteSpan spanOf(const py::bytes& bytes) {
  const auto view = static_cast<std::string_view>(bytes);
  return std::as_bytes(std::span(view.data(), view.size()));
}

py::bytes toPython(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::shared_ptr<Bytes> copied(const py::bytes& bytes) {
  const auto span = spanOf(bytes);
  return std::make_shared<Bytes>(span.begin(), span.end());
}

PyRegion registerTensor(const at::Tensor& tensor, const std::string& name) {
  checkedTensor("registration", {tensor});
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
    const MemoryView view{reinterpret_cast<std::byte*>(address), size};
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

using PartTuple = std::tuple<PyRegion, PyRemote, py::object>;

Pending startTransfer(
    const PeerLink& link,
    bool write,
    const std::vector<PartTuple>& parts,
    uint32_t noteTag,
    const std::optional<py::bytes>& note) {
  std::vector<PartSpec> specs;
  specs.reserve(parts.size());
  for (const auto& [local, remote, pieces] : parts) {
    specs.emplace_back(local, remote.handle, pieces);
  }
  const auto bytes = note ? copied(*note) : nullptr;
  return released([&] {
    auto built = std::make_shared<Transfer::Parts>();
    for (const auto& spec : specs) {
      spec.build(write, *built);
    }
    refuseOverlap(*built, write);
    return link.transfer(write, std::move(built), noteTag, bytes);
  });
}

// The same with one part, which costs less to take apart.
Pending startOne(
    const PeerLink& link,
    bool write,
    const PyRegion& local,
    const PyRemote& remote,
    const py::object& pieces) {
  const PartSpec spec(local, remote.handle, pieces);
  return released([&] {
    auto built = std::make_shared<Transfer::Parts>();
    spec.build(write, *built);
    return link.transfer(write, std::move(built), 0, nullptr);
  });
}

// Pieces that were taken apart and checked, to be transferred any number of
// times.
struct Prepared {
  std::shared_ptr<const PeerLink> link;
  bool write;
  std::shared_ptr<const Transfer::Parts> parts;

  Pending start() const {
    return released([&] { return link->transfer(write, parts, 0, nullptr); });
  }
};

Prepared prepare(
    const std::shared_ptr<PeerLink>& link,
    bool write,
    const PyRegion& local,
    const PyRemote& remote,
    const py::object& pieces) {
  const PartSpec spec(local, remote.handle, pieces);
  return released([&] {
    auto built = std::make_shared<Transfer::Parts>();
    spec.build(write, *built);
    return Prepared{link, write, std::move(built)};
  });
}

// Of any number: not a number is no time at all.
milliseconds timeOf(double seconds) {
  constexpr double kMost = 1e9;
  return milliseconds(
      seconds > 0 ? static_cast<int64_t>(std::min(seconds, kMost) * 1000) : 0);
}

milliseconds limitOf(const Pending& pending, std::optional<double> seconds) {
  return seconds ? timeOf(*seconds) : pending.usualLimit();
}

void waitFor(const Pending& pending, std::optional<double> seconds) {
  const auto wait = [&] { pending.wait(limitOf(pending, seconds)); };
  pending.operation().done() ? wait() : released(wait);
  if (!pending.operation().status().ok()) {
    raise(pending.operation().status());
  }
}

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
      .def_property_readonly(
          "name",
          [](const PyRegion& region) { return region.region->handle().name; })
      .def(
          "deregister",
          [](const PyRegion& region, double timeout) {
            const auto limit = timeOf(timeout);
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

void bindPending(py::module& module) {
  py::class_<Notifier, std::shared_ptr<Notifier>>(module, "Notifier")
      .def(py::init<>())
      .def_property_readonly("fd", &Notifier::fd)
      .def("take", &Notifier::take);
  py::class_<Pending>(module, "Pending")
      .def(
          "done",
          [](const Pending& pending) {
            return released([&] { return pending.done(); });
          })
      .def("wait", &waitFor, py::arg("timeout") = std::nullopt)
      .def(
          "cancel",
          [](const Pending& pending) { released([&] { pending.cancel(); }); })
      .def(
          "watch",
          &Pending::watch,
          py::arg("notifier"),
          py::arg("number"),
          py::call_guard<py::gil_scoped_release>())
      .def_property_readonly(
          "nbytes",
          [](const Pending& pending) { return pending.operation().bytes(); })
      .def_property_readonly("content", [](const Pending& pending) {
        return toPython(pending.bytes());
      });
}

Endpoint::Options endpointOptions(
    const std::string& name,
    double timeout,
    const std::string& route) {
  Endpoint::Options options;
  options.name = name;
  options.timeout = timeOf(timeout);
  const auto config = Config::fromEnvironment();
  options.route = route.empty() ? config.route : parseRoutePolicy(route);
  options.fallback = config.fallback;
  return options;
}

void bindHubs(py::module& module) {
  py::class_<GuestLink, PeerLink, std::shared_ptr<GuestLink>>(
      module, "GuestLink")
      .def("close", [](GuestLink& link) { released([&] { link.close(); }); });
  py::class_<HubLink>(module, "HubLink")
      .def(
          py::init([](const std::string& name,
                      double timeout,
                      const std::string& route) {
            return released([&] {
              return std::make_unique<HubLink>(
                  endpointOptions(name, timeout, route));
            });
          }),
          py::arg("name"),
          py::arg("timeout"),
          py::arg("route"))
      .def_property_readonly(
          "address", [](const HubLink& hub) { return toPython(hub.address()); })
      .def(
          "accept",
          [](HubLink& hub) { return released([&] { return hub.accept(); }); })
      .def("close", [](HubLink& hub) { released([&] { hub.close(); }); });
}

void bindLinks(py::module& module) {
  py::class_<Prepared>(module, "Prepared").def("start", &Prepared::start);
  py::class_<PeerLink, std::shared_ptr<PeerLink>>(module, "PeerLink")
      .def(
          py::init([](DlslimeBackend& backend, int rank) {
            backend.checkPeer("transfer", rank);
            return std::make_shared<PeerLink>(backend.handle(), rank);
          }),
          py::arg("backend"),
          py::arg("rank"))
      .def(
          "transfer_one",
          &startOne,
          py::arg("write"),
          py::arg("local"),
          py::arg("remote"),
          py::arg("pieces"))
      .def(
          "prepare",
          &prepare,
          py::arg("write"),
          py::arg("local"),
          py::arg("remote"),
          py::arg("pieces"))
      .def(
          "transfer",
          &startTransfer,
          py::arg("write"),
          py::arg("parts"),
          py::arg("note_tag") = 0,
          py::arg("note") = std::nullopt)
      .def(
          "send",
          [](const PeerLink& link, const at::Tensor& tensor, uint32_t tag) {
            return released([&] { return link.send(tensor, tag); });
          },
          py::arg("tensor"),
          py::arg("tag"))
      .def(
          "recv",
          [](const PeerLink& link, const at::Tensor& tensor, uint32_t tag) {
            return released([&] { return link.receive(tensor, tag); });
          },
          py::arg("tensor"),
          py::arg("tag"))
      .def(
          "send_note",
          [](const PeerLink& link, uint32_t noteTag, const py::bytes& note) {
            auto bytes = copied(note);
            return released([&] { return link.sendNote(noteTag, bytes); });
          },
          py::arg("note_tag"),
          py::arg("note"))
      .def(
          "receive_note",
          [](const PeerLink& link, uint32_t noteTag, size_t capacity) {
            return released(
                [&] { return link.receiveNote(noteTag, capacity); });
          },
          py::arg("note_tag"),
          py::arg("capacity"))
      .def("route", [](const PeerLink& link) {
        return released([&] { return link.explain().route; });
      });
  py::class_<EndpointLink, PeerLink, std::shared_ptr<EndpointLink>>(
      module, "EndpointLink")
      .def(
          py::init([](const std::string& name,
                      double timeout,
                      const std::string& route) {
            return released([&] {
              return std::make_shared<EndpointLink>(
                  endpointOptions(name, timeout, route));
            });
          }),
          py::arg("name"),
          py::arg("timeout"),
          py::arg("route"))
      .def_property_readonly(
          "address",
          [](const EndpointLink& link) { return toPython(link.address()); })
      .def(
          "connect",
          [](EndpointLink& link, const py::bytes& address) {
            const auto bytes = copied(address);
            released([&] { link.connect(*bytes); });
          },
          py::arg("address"))
      .def(
          "close", [](EndpointLink& link) { released([&] { link.close(); }); });
}

} // namespace

void bindOneSided(py::module& module) {
  bindRegions(module);
  bindPending(module);
  bindLinks(module);
  bindHubs(module); // after PeerLink
}

} // namespace dlslime
