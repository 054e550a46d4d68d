#pragma once

namespace dlslime {

// True on the threads that an engine has started, all of which its destructor
// joins: there it must not run. What users give us to let go of there (a
// tensor's memory with a deleter of its own) may hold the last handle to it.
inline thread_local bool onEngineThread = false;

} // namespace dlslime
