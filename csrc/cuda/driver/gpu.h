#pragma once

#include <string>
#include <vector>

#include "cuda/driver/driver.h"
#include "interface/memory.h"

namespace dlslime::cuda {

// A GPU with the primary context made by the program. The engine makes no
// context: a context takes hundreds of megabytes of the GPU's memory.
class Gpu {
 public:
  // Throws Error{kInvalidArgument} if there is no GPU `ordinal`, or the program
  // has made no context on it.
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
  // Returns "0000:18:00.0", as in sysfs.
  const std::string& pciAddress() const {
    return pciAddress_;
  }
  // Returns "GPU 0 (NVIDIA H200, 0000:18:00.0)".
  std::string describe() const;

  // Makes the GPU's context the calling thread's current context while the
  // object lives. Calls within a Scope are not captured into a graph, and do
  // not spoil a capture by any thread.
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

// Returns the PCI addresses of the GPUs with a context of the process.
std::vector<std::string> gpusInUse();

} // namespace dlslime::cuda
