#pragma once

#include <string>

#include "engine/engine.h"

namespace dlslime {

// Files in the form of torch's flight recorder, for each rank: of the
// operations under way, as torch's analyser (torchfrtrace) reads them, and of
// all operations kept.
struct FlightFiles {
  std::string unfinished, all;
};
// Writes both files into the folder, or if the text is empty into
// Config::flightDir or its default, and returns their paths. Throws Error.
FlightFiles writeFlightLog(Engine& engine, const std::string& folder);

// Writes both files when an operation fails in a way that a person will look
// into, and logs their names. `cause` is for the log: "an operation has timed
// out". Does nothing if no operation is under way, or after the first call with
// the cause.
void dumpFlightLog(Engine& engine, const std::string& cause) noexcept;

// Has a thread write both files at each signal, until the process ends. The
// name is Config::flightSignal's: "USR1" or "USR2".
void dumpFlightLogAt(const std::string& signal);

} // namespace dlslime
