#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace dlslime {

// Choice of devices or interfaces in the notation of NCCL's variables:
// "mlx5,bnxt" are prefixes of names, "=mlx5_0" is a whole name, and "^" in
// front excludes the names. The caller decides how an entry matches.
struct NameList {
  static NameList parse(const std::string& text);

  bool excludes = false;
  bool whole = false;
  std::vector<std::string> entries;

  // Returns whether the list chooses a thing; `names(entry)` tells whether an
  // entry names the thing. An empty list chooses everything.
  template <typename Names>
  bool chooses(const Names& names) const {
    return entries.empty() ||
        std::any_of(entries.begin(), entries.end(), names) != excludes;
  }
};

} // namespace dlslime
