#pragma once

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace dlslime {

// Returns the store below all prefixes.
inline c10d::Store* underlyingStore(c10d::Store* store) {
  while (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store)) {
    store = prefixed->getUnderlyingStore().get();
  }
  return store;
}

// Returns the TCPStore below all prefixes, or null if it is of another kind.
inline const c10d::TCPStore* underlyingTcpStore(c10d::Store* store) {
  return dynamic_cast<const c10d::TCPStore*>(underlyingStore(store));
}

} // namespace dlslime
