#include "torch_ext/bind/same_build.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/library/build_id.h"

namespace dlslime {

namespace {
std::string fileOf(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) {
    return "an unknown file";
  }
  const std::unique_ptr<char, decltype(&std::free)> whole(
      realpath(info.dli_fname, nullptr), &std::free);
  return whole ? whole.get() : info.dli_fname;
}
} // namespace

void requireSameBuild() {
  if (buildId() == DLSLIME_BUILD_ID) {
    return;
  }
  throw std::runtime_error(
      "dlslime_backend: " + fileOf(reinterpret_cast<void*>(&requireSameBuild)) +
      " is of build " DLSLIME_BUILD_ID ", but the engine in " +
      fileOf(reinterpret_cast<void*>(&buildId)) + " is of build " +
      std::string(buildId()) +
      ". Two installations are mixed, or the program has loaded another "
      "libdlslime.so first: uninstall dlslime-backend and install it again");
}

} // namespace dlslime
