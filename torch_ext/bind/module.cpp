#include <torch/csrc/utils/pybind.h>

#include "torch_ext/bind/same_build.h"
#include "torch_ext/c10d/backend.h"
#include "torch_ext/support/python_end.h"

// Each function adds the classes of a bind_*.cpp file to the module.
namespace dlslime {
void bindConfig(pybind11::module& module);
void bindOptions(pybind11::module& module);
void bindBackend(pybind11::module& module);
void bindRecords(pybind11::module& module);
void bindRegions(pybind11::module& module);
void bindOneSided(pybind11::module& module);
} // namespace dlslime

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  dlslime::requireSameBuild();
  module.attr("torch_version") = DLSLIME_TORCH_VERSION;
  dlslime::bindConfig(module);
  dlslime::bindOptions(module);
  dlslime::bindBackend(module);
  dlslime::bindRecords(module);
  dlslime::bindRegions(module);
  dlslime::bindOneSided(module);
  module.def(
      "begin_python_end",
      &dlslime::beginPythonEnd,
      pybind11::call_guard<pybind11::gil_scoped_release>(),
      "Let what is under way finish for a moment: the interpreter ends.");
}
