#include <torch/csrc/autograd/python_variable.h>

#include "torch_ext/bind/binding.h"
#include "torch_ext/bind/python_call.h"
#include "torch_ext/c10d/backend.h"
#include "torch_ext/one_sided/hub_link.h"
#include "torch_ext/one_sided/part_spec.h"
#include "torch_ext/one_sided/peer_link.h"

namespace dlslime {

namespace {

// A part of a transfer, (Region, RemoteRegion, pieces), left untyped so that
// PartSpec reports wrong types.
using PartTuple = std::tuple<py::object, py::object, py::object>;

Pending startTransfer(
    const PeerLink& link,
    bool write,
    const std::vector<PartTuple>& parts,
    uint32_t noteTag,
    const std::optional<py::bytes>& note) {
  std::vector<PartSpec> specs;
  specs.reserve(parts.size());
  for (const auto& [local, remote, pieces] : parts) {
    specs.emplace_back(local, remote, pieces);
  }
  const auto bytes = note ? copied(*note) : nullptr;
  return released([&] {
    auto built = std::make_shared<Transfer::Parts>();
    for (const auto& spec : specs) {
      spec.build(write, *built);
    }
    refuseOverlap(*built, write);
    refuseOverlapWithSources(*built, write);
    return link.transfer(write, std::move(built), noteTag, bytes);
  });
}

// Builds the parts of a transfer with a single part, at less cost than several:
// parts cannot overlap.
std::shared_ptr<Transfer::Parts> partsOf(bool write, const PartSpec& spec) {
  auto built = std::make_shared<Transfer::Parts>();
  spec.build(write, *built);
  refuseOverlapWithSources(*built, write);
  return built;
}

Pending startOne(
    const PeerLink& link,
    bool write,
    const py::object& local,
    const py::object& remote,
    const py::object& pieces) {
  const PartSpec spec(local, remote, pieces);
  return released(
      [&] { return link.transfer(write, partsOf(write, spec), 0, nullptr); });
}

// Pieces parsed and checked once, for any number of transfers.
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
    const py::object& local,
    const py::object& remote,
    const py::object& pieces) {
  const PartSpec spec(local, remote, pieces);
  return released([&] { return Prepared{link, write, partsOf(write, spec)}; });
}

at::Tensor tensorArgument(const py::handle& value) {
  if (!THPVariable_Check(value.ptr())) {
    throw py::type_error(
        "dlslime: a message is a tensor, not " + kindOf(value));
  }
  return THPVariable_Unpack(value.ptr());
}

milliseconds limitOf(const Pending& pending, std::optional<double> seconds) {
  return seconds ? checkedSeconds("a wait's", *seconds, true)
                 : pending.usualLimit();
}

void waitFor(const Pending& pending, std::optional<double> seconds) {
  const auto limit = limitOf(pending, seconds);
  const auto wait = [&] { pending.wait(limit); };
  pending.operation().done() ? wait() : released(wait);
  if (!pending.operation().status().ok()) {
    raise(pending.operation().status());
  }
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
      .def_property_readonly(
          "ended", // without looking for news
          [](const Pending& pending) { return pending.operation().done(); })
      .def("wait", &waitFor, py::arg("timeout") = std::nullopt)
      .def(
          "hold_current_stream",
          [](const Pending& pending) {
            released([&] { pending.holdCurrentStream(); });
          })
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
    const std::string& route,
    const MakePairGroup& makePairGroup) {
  Endpoint::Options options;
  options.name = name;
  options.timeout = checkedSeconds("an endpoint's", timeout, false);
  const auto config = Config::fromEnvironment();
  options.route = route.empty() ? config.route : parseRoutePolicy(route);
  options.fallback = config.fallback;
  options.carrierSource =
      std::make_shared<TorchCarrierSource>(makePairGroup, config);
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
                      const std::string& route,
                      py::function makePairGroup) {
            const auto maker = pairGroupMaker(std::move(makePairGroup));
            return released([&] {
              return std::make_unique<HubLink>(
                  endpointOptions(name, timeout, route, maker));
            });
          }),
          py::arg("name"),
          py::arg("timeout"),
          py::arg("route"),
          py::arg("make_pair_group"))
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
          [](const PeerLink& link, const py::object& message, uint32_t tag) {
            const auto tensor = tensorArgument(message);
            return released([&] { return link.send(tensor, tag); });
          },
          py::arg("tensor"),
          py::arg("tag"))
      .def(
          "recv",
          [](const PeerLink& link, const py::object& message, uint32_t tag) {
            const auto tensor = tensorArgument(message);
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
                      const std::string& route,
                      py::function makePairGroup) {
            const auto maker = pairGroupMaker(std::move(makePairGroup));
            return released([&] {
              return std::make_shared<EndpointLink>(
                  endpointOptions(name, timeout, route, maker));
            });
          }),
          py::arg("name"),
          py::arg("timeout"),
          py::arg("route"),
          py::arg("make_pair_group"))
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
  bindPending(module);
  bindLinks(module);
  bindHubs(module); // after PeerLink, the base class of GuestLink
}

} // namespace dlslime
