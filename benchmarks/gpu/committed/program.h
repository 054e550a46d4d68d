#pragma once

#include <string>
#include <vector>

#include "committed/rank.h"

namespace committed {

constexpr uint32_t kMessage = 1 << 20;
constexpr size_t kMemory = 96 << 20;

// What one of both ranks does: a pattern that must end, or a measurement whose
// results it leaves in Shared::times, in the order of `values`.
struct Program {
  const char* name;
  std::vector<const char*> values;
  void (*run)(Rank& rank, Shared& shared, const std::string& ptx);
};

const std::vector<Program>& patterns();
const std::vector<Program>& measurements();

// A kernel that keeps its stream busy for so long; loaded when it is made.
class Spinner {
 public:
  explicit Spinner(const std::string& ptx);
  void spin(Stream stream, DevicePointer word, double milliseconds) const;

 private:
  Function function_ = nullptr;
};

Stream makeStream();
void settle(Stream stream);
// So many bytes of this value at an offset of the rank's memory.
void fill(Rank& rank, uint32_t offset, uint32_t size, uint8_t value);
// Throws std::runtime_error unless they are there.
void verify(Rank& rank, uint32_t offset, uint32_t size, uint8_t value);

} // namespace committed
