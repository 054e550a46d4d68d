// Takes the place of Nsight Systems: NVTX loads this library in a process with
// NVTX_INJECTION64_PATH, and it keeps the ranges of the process.

#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::string lines; // guarded by mutex

void add(const std::string& line) {
  const std::lock_guard<std::mutex> lock(mutex);
  lines += line + '\n';
}

int push(const char* text) {
  add(text);
  return 0;
}

int pop() {
  add("end");
  return 0;
}

} // namespace

extern "C" {

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t exportTable) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(
      exportTable(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ==
          0 ||
      size <= NVTX_CBID_CORE_RangePop) {
    return 0;
  }
  *table[NVTX_CBID_CORE_RangePushA] =
      reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

// Returns the ranges begun, a line each, and a line "end" for each end.
const char* nvtxRanges() {
  const std::lock_guard<std::mutex> lock(mutex);
  return lines.c_str();
}

} // extern "C"
