#pragma once

#include <string>
#include <vector>

#include "committed/rank.h"

namespace committed {

constexpr uint32_t kMessage = 1 << 20;
constexpr size_t kMemory = 96 << 20;

// The work of a rank: a pattern that must end, or a measurement whose results
// go to Shared::times, in the order of `values`.
struct Program {
  const char* name;
  std::vector<const char*> values;
  void (*run)(Rank& rank, Shared& shared, const std::string& ptx);
};

const std::vector<Program>& patterns();
const std::vector<Program>& measurements();

// A kernel that keeps a stream busy for a given time; loaded by the
// constructor.
class Spinner {
 public:
  explicit Spinner(const std::string& ptx);
  void spin(Stream stream, DevicePointer word, double milliseconds) const;

 private:
  Function function_ = nullptr;
};

Stream makeStream();
void settle(Stream stream);
// Fills bytes of the rank's memory, from an offset, with the value.
void fill(Rank& rank, uint32_t offset, uint32_t size, uint8_t value);
// Throws std::runtime_error unless the bytes have the value.
void verify(Rank& rank, uint32_t offset, uint32_t size, uint8_t value);

} // namespace committed
