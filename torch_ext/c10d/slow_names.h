#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dlslime {

// Warns, from a thread and once for each process, if looking up the name of
// this host's address takes long: torch's TCPStore looks the name of its peer
// up at each connection, and says nothing while a name server does not answer.
// Does nothing for other stores.
void warnOfSlowNames(const c10::intrusive_ptr<c10d::Store>& store);

} // namespace dlslime
