#pragma once

#include "interface/connection.h"

namespace dlslime {

// Scope in which requests to a connection may go out together, at the end.
class Batch {
 public:
  explicit Batch(const Connection& connection)
      : batching_(connection.batching()) {
    if (batching_ != nullptr) {
      batching_->beginBatch();
    }
  }
  ~Batch() {
    if (batching_ != nullptr) {
      batching_->endBatch();
    }
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

 private:
  BatchAbility* const batching_;
};

} // namespace dlslime
