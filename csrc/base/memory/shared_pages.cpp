#include "base/memory/shared_pages.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/threads/mutex.h"

namespace dlslime {

namespace {

// Longest pause between two calls of a burst.
constexpr milliseconds kMostPause{1};
// Longest use of a table read once.
constexpr milliseconds kMostAge{50};

struct Mapping {
  uint64_t begin = 0, end = 0;
  std::string file; // empty: private
  uint64_t offset = 0;
};

std::string firstLine(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

// Returns whether the path is of a device: all mappings of a device may have
// equal offsets, and different pages.
bool isDevice(std::string_view path) {
  constexpr std::string_view kFiles[] = {
      "/dev/shm/", "/dev/zero", "/dev/hugepages", "/dev/dax"};
  return path.starts_with("anon_inode:") ||
      (path.starts_with("/dev/") &&
       std::none_of(
           std::begin(kFiles), std::end(kFiles), [&](const auto& prefix) {
             return path.starts_with(prefix);
           }));
}

// Parses a line of /proc/self/maps:
// 7f1c2a000000-7f1c2a100000 rw-s 00001000 00:01 2057      /memfd:x (deleted)
bool parse(const std::string& line, const std::string& boot, Mapping& mapping) {
  char access[5] = {};
  char device[24] = {};
  unsigned long long begin = 0, end = 0, offset = 0, inode = 0;
  int path = 0; // offset of the path in the line
  const int fields = std::sscanf(
      line.c_str(),
      "%llx-%llx %4s %llx %23s %llu %n",
      &begin,
      &end,
      access,
      &offset,
      device,
      &inode,
      &path);
  if (fields != 6) {
    return false;
  }
  mapping = {begin, end, {}, offset};
  const bool shared = access[3] == 's' && inode != 0;
  if (shared && !isDevice(std::string_view(line).substr(path))) {
    mapping.file = boot + " " + device + " " + std::to_string(inode);
  }
  return true;
}

// Returns all mappings by address. Adjacent mappings of consecutive parts of a
// file are joined.
std::vector<Mapping> readMappings() {
  const auto boot = firstLine("/proc/sys/kernel/random/boot_id");
  std::vector<Mapping> all;
  std::ifstream maps("/proc/self/maps");
  Mapping next;
  for (std::string line; std::getline(maps, line);) {
    if (!parse(line, boot, next)) {
      continue;
    }
    if (!all.empty() && all.back().end == next.begin &&
        all.back().file == next.file &&
        (next.file.empty() ||
         all.back().offset + (next.begin - all.back().begin) == next.offset)) {
      all.back().end = next.end;
    } else {
      all.push_back(next);
    }
  }
  return all;
}

// Returns the mapping with the whole range, or null if the range lies in none
// or in several.
const Mapping*
find(const std::vector<Mapping>& all, uint64_t begin, uint64_t end) {
  auto found = std::upper_bound(
      all.begin(), all.end(), begin, [](uint64_t at, const Mapping& mapping) {
        return at < mapping.begin;
      });
  if (found == all.begin()) {
    return nullptr;
  }
  --found;
  return found->end < end ? nullptr : &*found;
}

// The table of mappings read last.
struct Table {
  Mutex mutex;
  std::vector<Mapping> mappings GUARDED_BY(mutex);
  TimePoint readAt GUARDED_BY(mutex), askedAt GUARDED_BY(mutex);

  static Table& last() {
    static auto* const table = new Table; // threads may outlive statics
    return *table;
  }
};

} // namespace

void forgetMappings() {
  auto& table = Table::last();
  const MutexLock lock(table.mutex);
  table.mappings.clear();
}

SharedPages sharedPagesOf(const void* address, uint64_t size) {
  const auto begin = reinterpret_cast<uint64_t>(address);
  auto& table = Table::last();
  const MutexLock lock(table.mutex);
  const auto now = Clock::now();
  if (now - table.readAt > kMostAge || now - table.askedAt > kMostPause) {
    table.mappings.clear();
  }
  const auto* mapping = find(table.mappings, begin, begin + size);
  if (mapping == nullptr) {
    table.mappings = readMappings();
    table.readAt = now;
    mapping = find(table.mappings, begin, begin + size);
  }
  table.askedAt = Clock::now();
  if (mapping == nullptr || mapping->file.empty()) {
    return {};
  }
  return {mapping->file, mapping->offset + (begin - mapping->begin)};
}

} // namespace dlslime
