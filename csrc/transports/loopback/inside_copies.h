#pragma once

#include "interface/connection_abilities.h"

// Functions of copy jobs whose both ends are memory of this process.

namespace dlslime::loopback {

// Copies the bytes of a message.
int copyInside(const CopyJob& job);
// Move the pieces of a transfer, from the remote memory and to it.
int readInside(const CopyJob& job);
int writeInside(const CopyJob& job);

} // namespace dlslime::loopback
