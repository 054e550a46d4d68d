#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "base/config.h"
#include "engine/engine.h"
#include "torch_ext/bind/python_call.h"
#include "torch_ext/c10d/backend.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

namespace py = pybind11;

namespace {

c10::intrusive_ptr<DlslimeBackend> makeBackend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const std::string& name,
    const c10::intrusive_ptr<BackendOptions>& options,
    py::function makePairGroup,
    py::function makeCollectives,
    py::function makeChild) {
  DlslimeBackend::Setup setup{
      store,
      rank,
      size,
      name,
      options,
      pairGroupMaker(std::move(makePairGroup)),
      callFromAnyThread<
          const std::string&,
          const std::string&,
          const c10::intrusive_ptr<c10d::Store>&,
          std::chrono::milliseconds>(std::move(makeCollectives)),
      callFromAnyThread<
          const c10::intrusive_ptr<c10d::Store>&,
          const std::string&,
          int,
          int,
          const c10::intrusive_ptr<BackendOptions>&>(std::move(makeChild))};
  const py::gil_scoped_release release;
  return c10::make_intrusive<DlslimeBackend>(std::move(setup));
}

py::dict toDict(const PeerReport& report) {
  py::list rejected;
  for (const auto& entry : report.rejected) {
    py::dict one;
    one["route"] = entry.route;
    one["reason"] = entry.reason;
    rejected.append(one);
  }
  py::dict dict;
  dict["rank"] = report.rank;
  dict["route"] = report.route;
  dict["copy"] = report.copy;
  dict["devices"] = report.devices;
  py::list nics;
  for (const auto& traffic : report.nics) {
    py::dict one;
    one["nic"] = traffic.nic;
    one["requests"] = traffic.requests;
    one["sent_bytes"] = traffic.sentBytes;
    one["read_bytes"] = traffic.readBytes;
    nics.append(one);
  }
  dict["nics"] = nics;
  dict["replaced_connections"] = report.replaced;
  dict["rejected"] = rejected;
  dict["pid"] = report.peer.pid;
  dict["host"] = report.peer.host;
  dict["network_namespace"] = report.peer.networkNamespace;
  dict["sent_messages"] = report.counters.sentMessages;
  dict["sent_bytes"] = report.counters.sentBytes;
  dict["received_messages"] = report.counters.receivedMessages;
  dict["received_bytes"] = report.counters.receivedBytes;
  dict["eager_messages"] = report.counters.eagerMessages;
  dict["pushed_messages"] = report.counters.pushedMessages;
  dict["cuda_ipc_messages"] = report.counters.cudaIpcMessages;
  dict["gpudirect_messages"] = report.counters.gpuDirectMessages;
  dict["rendezvous_messages"] = report.counters.rendezvousMessages;
  dict["read_bytes"] = report.counters.readBytes;
  dict["written_bytes"] = report.counters.writtenBytes;
  dict["pending_sends"] = report.pendingSends;
  dict["pending_receives"] = report.pendingReceives;
  return dict;
}

py::list reportList(DlslimeBackend& backend) {
  std::vector<PeerReport> reports;
  {
    const py::gil_scoped_release release;
    const StaysWhenPythonEnds stays;
    reports = backend.report();
  }
  py::list list;
  for (const auto& report : reports) {
    list.append(toDict(report));
  }
  return list;
}

py::dict explainDict(DlslimeBackend& backend, int rank) {
  PeerReport report;
  {
    const py::gil_scoped_release release;
    const StaysWhenPythonEnds stays;
    report = backend.explain(rank);
  }
  return toDict(report);
}

py::list machineReport() {
  py::list list;
  for (const auto& [route, text] : Engine::routesOfMachine()) {
    list.append(py::make_tuple(route, text));
  }
  return list;
}

} // namespace

void bindBackend(py::module& module) {
  py::class_<DlslimeBackend, c10::intrusive_ptr<DlslimeBackend>, c10d::Backend>(
      module, "Backend")
      .def(
          py::init(&makeBackend),
          py::arg("store"),
          py::arg("rank"),
          py::arg("size"),
          py::arg("name"),
          py::arg("options"),
          py::arg("make_pair_group"),
          py::arg("make_collectives"),
          py::arg("make_child"))
      .def_property_readonly(
          "options", [](DlslimeBackend& backend) { return backend.options(); })
      .def(
          "perform_nocolor_split",
          [](const DlslimeBackend&, const py::object& /*device*/) {},
          py::arg("device"),
          "What torch asks ranks outside of a new group for: nothing is to do.")
      .def("get_error", &DlslimeBackend::getError)
      .def("report", &reportList)
      .def("explain_peer", &explainDict, py::arg("rank"))
      .def_property_readonly("connections", &DlslimeBackend::connections)
      .def_property_readonly("groups", &DlslimeBackend::groups)
      .def_property_readonly("listener_address", &DlslimeBackend::listenerName);
  module.def("machine_report", &machineReport);
  // Returns the address of the interface chosen by an environment variable.
  // Without a choice, returns the first usable address if `anyway` is set, else
  // None.
  module.def(
      "own_address",
      [](bool anyway) -> std::optional<std::string> {
        const auto config = Config::fromEnvironment();
        if (config.interfaces.empty() && !anyway) {
          return std::nullopt;
        }
        return checkedCall([&] {
          return Engine::ownAddresses(
                     config.interfaces, config.interfacesSetting)
              .front();
        });
      },
      py::arg("anyway"));
}

} // namespace dlslime
