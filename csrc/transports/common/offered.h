#pragma once

#include <map>
#include <string>
#include <utility>

#include "base/status.h"

namespace dlslime {

// What a Transport has offered and got no answer for, by the connection's
// nonce. Of the wire-up thread alone.
template <typename T>
class Offered {
 public:
  T& put(const std::string& nonce, T half) {
    return halves_.try_emplace(nonce, std::move(half)).first->second;
  }
  // Throws Error: this answers nothing that we asked.
  T take(const std::string& nonce) {
    auto found = halves_.extract(nonce);
    if (found.empty()) {
      throw Error(
          ErrorCode::kPeerFailed, "an answer to an offer that was never made");
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
