#include "base/name_list.h"

#include <sstream>

namespace dlslime {

NameList NameList::parse(const std::string& text) {
  const auto marks = text.substr(0, text.find_first_not_of("^="));
  NameList list;
  list.excludes = marks.find('^') != std::string::npos;
  list.whole = marks.find('=') != std::string::npos;
  std::stringstream stream(text.substr(marks.size()));
  for (std::string entry; std::getline(stream, entry, ',');) {
    if (!entry.empty()) {
      list.entries.push_back(entry);
    }
  }
  return list;
}

} // namespace dlslime
