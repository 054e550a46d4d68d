#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "base/status.h"
#include "torch_ext/support/options.h"
#include "torch_ext/support/timeouts.h"

namespace dlslime {

namespace py = pybind11;

namespace {

c10::intrusive_ptr<BackendOptions> makeOptions(
    std::optional<std::chrono::milliseconds> timeout,
    const std::string& route,
    const std::string& fallback) {
  if (timeout) {
    checkedTimeout("a group's", *timeout);
  }
  auto options = timeout ? c10::make_intrusive<BackendOptions>(*timeout)
                         : c10::make_intrusive<BackendOptions>();
  if (!route.empty()) {
    parseRoutePolicy(route);
  }
  if (!fallback.empty()) {
    parseFallbackPolicy(fallback);
  }
  options->route = route;
  options->fallback = fallback;
  return options;
}

c10::intrusive_ptr<BackendOptions> copyOptions(const BackendOptions& options) {
  return c10::make_intrusive<BackendOptions>(options);
}

} // namespace

void bindOptions(py::module& module) {
  py::class_<
      BackendOptions,
      c10::intrusive_ptr<BackendOptions>,
      c10d::Backend::Options>(module, "Options")
      .def(
          py::init([](std::optional<std::chrono::milliseconds> timeout,
                      const std::string& route,
                      const std::string& fallback) {
            try {
              return makeOptions(timeout, route, fallback);
            } catch (const Error& error) {
              throw py::value_error(error.what());
            }
          }),
          py::arg("timeout") = std::nullopt,
          py::arg("route") = "",
          py::arg("fallback") = "")
      .def_readwrite("route", &BackendOptions::route)
      .def_readwrite("fallback", &BackendOptions::fallback)
      .def("__copy__", &copyOptions)
      .def(
          "__deepcopy__",
          [](const BackendOptions& options, const py::dict& /*memo*/) {
            return copyOptions(options);
          });
}

} // namespace dlslime
