#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace dlslime {

// A choice of devices or interfaces, as NCCL's variables write it: "mlx5,bnxt"
// are beginnings of names, "=mlx5_0" is a whole one, "^" before either excludes
// those that are named. What an entry means is for the reader to say.
struct NameList {
  static NameList parse(const std::string& text);

  bool excludes = false;
  bool whole = false;
  std::vector<std::string> entries;

  // Whether the thing is chosen for which `names(entry)` tells whether an entry
  // names it. An empty list chooses everything.
  template <typename Names>
  bool chooses(const Names& names) const {
    return entries.empty() ||
        std::any_of(entries.begin(), entries.end(), names) != excludes;
  }
};

} // namespace dlslime
