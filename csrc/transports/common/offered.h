#pragma once

#include <map>
#include <string>
#include <utility>

#include "base/status.h"

namespace dlslime {

// Halves of connections offered by a Transport and not answered yet, by the
// connection's nonce. Only the wire-up thread uses an Offered.
template <typename T>
class Offered {
 public:
  T& put(const std::string& nonce, T half) {
    return halves_.try_emplace(nonce, std::move(half)).first->second;
  }
  // Removes and returns the half offered under the nonce. Throws Error if no
  // offer has the nonce.
  T take(const std::string& nonce) {
    auto found = halves_.extract(nonce);
    if (found.empty()) {
      throw Error(
          ErrorCode::kPeerFailed,
          "the peer answers an offer that was never made");
    }
    return std::move(found.mapped());
  }
  void drop(const std::string& nonce) {
    halves_.erase(nonce);
  }

 private:
  std::map<std::string, T> halves_;
};

} // namespace dlslime
