#pragma once

namespace dlslime {

// Throws std::runtime_error if the loaded libdlslime.so is of another build
// than this extension: classes of the two would not fit.
void requireSameBuild();

} // namespace dlslime
