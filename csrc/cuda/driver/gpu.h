#pragma once

#include <string>
#include <vector>

#include "cuda/driver/driver.h"
#include "interface/memory.h"

namespace dlslime::cuda {

// One GPU, by the primary context that the program has made on it. We never
// make one ourselves: that takes hundreds of megabytes of its memory.
class Gpu {
 public:
  // Throws Error{kInvalidArgument}: there is no such GPU, or the program has
  // not touched it.
  Gpu(const Driver& driver, Device ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const Driver& driver() const {
    return driver_;
  }
  Device ordinal() const {
    return ordinal_;
  }
  const Uuid& uuid() const {
    return uuid_;
  }
  // "0000:18:00.0", as in sysfs.
  const std::string& pciAddress() const {
    return pciAddress_;
  }
  // "GPU 0 (NVIDIA H200, 0000:18:00.0)".
  std::string describe() const;

  // Makes its context the calling thread's as long as it lives, whatever that
  // was before. What is done in it has nothing to do with a graph that some
  // thread is capturing, and does not spoil it.
  class Scope {
   public:
    explicit Scope(const Gpu& gpu);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const Driver& driver_;
    CaptureMode captureMode_ = CaptureMode::kRelaxed;
  };

 private:
  const Driver& driver_;
  const Device ordinal_;
  Context context_ = nullptr;
  Uuid uuid_{};
  std::string name_, pciAddress_;
};

// The PCI addresses of those that this process has a context on.
std::vector<std::string> gpusInUse();

} // namespace dlslime::cuda
