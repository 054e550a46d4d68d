#pragma once

// Marks what libdlslime.so shows to other libraries: the calls for programs,
// and what dlslime's own extension for torch uses. Everything else is hidden.
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): attributes can only be made so
#define DLSLIME_API [[gnu::visibility("default")]]
