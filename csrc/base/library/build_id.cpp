#include "base/library/build_id.h"

#ifndef DLSLIME_BUILD_ID // a build without setup.py
#define DLSLIME_BUILD_ID "unversioned"
#endif

namespace dlslime {

std::string_view buildId() {
  return DLSLIME_BUILD_ID;
}

} // namespace dlslime
