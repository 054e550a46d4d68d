#pragma once

#include <utility>

namespace dlslime {

// Calls a function at the end of the enclosing scope, also when an exception
// leaves the scope.
template <typename Call>
class AtEnd {
 public:
  explicit AtEnd(Call call) : call_(std::move(call)) {}
  ~AtEnd() {
    call_();
  }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  const Call call_;
};

} // namespace dlslime
