#include <torch/csrc/utils/pybind.h>

#include "engine/engine.h"
#include "torch_ext/support/checked_call.h"
#include "torch_ext/support/flight_dump.h"

// Flight records and histograms of the process.

namespace dlslime {

namespace py = pybind11;

namespace {

std::shared_ptr<Engine> requireEngine() {
  auto engine = Engine::existing();
  TORCH_CHECK_VALUE(
      engine != nullptr,
      "dlslime: this process has no engine; call init_process_group first");
  return engine;
}

py::dict toDict(const HistogramReport& histogram) {
  py::dict dict;
  dict["count"] = histogram.count;
  dict["sum"] = histogram.sum;
  py::list buckets;
  for (const auto& [end, count] : histogram.buckets) {
    buckets.append(py::make_tuple(end, count));
  }
  dict["buckets"] = buckets;
  return dict;
}

py::dict operationReports() {
  std::vector<OperationReport> reports;
  {
    const py::gil_scoped_release release;
    reports = requireEngine()->operationReports();
  }
  py::dict all;
  for (const auto& report : reports) {
    py::list times;
    for (const auto& histogram : report.nanoseconds) {
      times.append(toDict(histogram));
    }
    py::dict one;
    one["nanoseconds"] = times;
    one["bytes"] = toDict(report.bytes);
    all[report.kind] = one;
  }
  return all;
}

std::pair<std::string, std::string> writeRecord(const std::string& folder) {
  const auto files =
      checkedCall([&] { return writeFlightLog(*requireEngine(), folder); });
  return {files.unfinished, files.all};
}

} // namespace

void bindRecords(py::module& module) {
  module.def("operation_reports", &operationReports);
  module.def(
      "write_flight_record",
      &writeRecord,
      py::arg("folder"),
      py::call_guard<py::gil_scoped_release>());
}

} // namespace dlslime
