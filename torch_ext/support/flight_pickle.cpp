#include "torch_ext/support/flight_pickle.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <map>
#include <mutex>

namespace dlslime {

namespace {

// Version of the form: what torch 2.11 to 2.15 write.
constexpr const char* kVersion = "2.10";
constexpr const char* kDescription = "dlslime";
constexpr size_t kMostNamed = 4096; // groups, of which the oldest are forgotten

struct FlightGroup {
  std::string name;
  int rank = 0;
  std::vector<uint64_t> globalRanks;

  uint64_t globalOf(int groupRank) const {
    const auto place = static_cast<size_t>(groupRank);
    return place < globalRanks.size() ? globalRanks[place] : place;
  }
};

struct NamedGroups {
  std::mutex mutex;
  std::map<uint64_t, FlightGroup> groups; // by key; guarded by mutex
};

NamedGroups& named() {
  static auto* const all = new NamedGroups; // a thread may outlive main()
  return *all;
}

// Returns the group of a record; a pair of processes without ranks has no name.
FlightGroup groupOf(uint64_t key) {
  auto& all = named();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.groups.find(key);
  return found != all.groups.end()
      ? found->second
      : FlightGroup{"pair " + std::to_string(key), 0, {}};
}

using Dict = c10::Dict<c10::IValue, c10::IValue>;
using List = c10::List<c10::IValue>;

Dict newDict() {
  return Dict(c10::AnyType::get(), c10::AnyType::get());
}

List newList() {
  return List(c10::AnyType::get());
}

// Writes the records as torch's flight recorder does. torch's analyser looks
// for each entry on all members of the entry's group, so each ordered pair and
// tag is a group of its own, of the sender and the receiver.
class Pickle {
 public:
  Pickle(const FlightLog& log, bool forAnalyser) : log_(log) {
    for (const auto& record : log.records) {
      if (!forAnalyser || comparable(record)) {
        add(record);
      }
    }
  }

  std::string text() const {
    auto top = newDict();
    top.insert("version", kVersion);
    top.insert("pg_config", groups_);
    top.insert("pg_status", newDict());
    top.insert("entries", entries_);
    std::string bytes;
    torch::jit::Pickler pickler(
        [&bytes](const char* data, size_t size) { bytes.append(data, size); },
        nullptr,
        nullptr,
        nullptr,
        nullptr,
        /*tag_aggregates=*/false);
    pickler.protocol();
    pickler.pushIValue(top);
    pickler.stop();
    return bytes;
  }

 private:
  static bool isMessage(const FlightRecord& record) {
    return record.kind == Operation::Kind::kSend ||
        record.kind == Operation::Kind::kReceive;
  }
  static bool comparable(const FlightRecord& record) {
    return record.state == FlightRecord::State::kPosted && isMessage(record) &&
        record.peer >= 0 && record.peer != groupOf(record.group).rank;
  }
  static const char* stateOf(const FlightRecord& record) {
    return record.state == FlightRecord::State::kPosted ? "started"
                                                        : "completed";
  }

  // Returns the name of the pair's group, and enters the group.
  std::string enterPair(const FlightRecord& record, bool send) {
    const auto group = groupOf(record.group);
    const int from = send ? group.rank : record.peer;
    const int to = send ? record.peer : group.rank;
    const auto known = [](int rank) {
      return rank < 0 ? std::string("?") : std::to_string(rank);
    };
    auto name = group.name + "/" + known(from) + "->" + known(to);
    if (record.tag != 0) {
      name += "/tag " + std::to_string(record.tag);
    }
    if (!groups_.contains(name)) {
      auto config = newDict();
      config.insert("name", name);
      config.insert("desc", kDescription);
      config.insert(
          "ranks",
          record.peer < 0
              ? "[" + std::to_string(group.globalOf(group.rank)) + "]"
              : "[" + std::to_string(group.globalOf(from)) + ", " +
                  std::to_string(group.globalOf(to)) + "]");
      groups_.insert(name, config);
    }
    return name;
  }

  static std::string titleOf(const FlightRecord& record) {
    switch (record.kind) {
      case Operation::Kind::kSend:
        return "nccl:send 0->1"; // ranks in the group of the pair
      case Operation::Kind::kReceive:
        return record.peer < 0 ? "nccl:recv 1<-?" : "nccl:recv 1<-0";
      case Operation::Kind::kRead:
        return "dlslime:read";
      case Operation::Kind::kWrite:
        return "dlslime:write";
    }
    return "?";
  }

  void add(const FlightRecord& record) {
    const bool send = record.kind != Operation::Kind::kReceive;
    const auto name = enterPair(record, send);
    const auto number = numbers_[name]++;
    const auto type = static_cast<c10::ScalarType>(record.elementType);
    auto entry = newDict();
    entry.insert("record_id", int64_t(entries_.size()));
    entry.insert("pg_id", int64_t(record.group));
    entry.insert(
        "process_group", std::make_tuple(name, std::string(kDescription)));
    entry.insert("collective_seq_id", number);
    entry.insert("p2p_seq_id", number);
    entry.insert("op_id", int64_t(record.number));
    entry.insert("is_p2p", true);
    entry.insert("profiling_name", titleOf(record));
    addSizes(entry, int64_t(record.bytes / c10::elementSize(type)));
    addTypes(entry, c10::toString(type));
    entry.insert("state", stateOf(record));
    addTimes(entry, record);
    entry.insert("frames", newList());
    entries_.push_back(entry);
  }

  static void addSizes(Dict& entry, int64_t count) {
    auto sizes = newList();
    sizes.push_back(c10::List<int64_t>({count}));
    entry.insert("input_sizes", sizes);
    entry.insert("output_sizes", sizes);
  }

  static void addTypes(Dict& entry, const char* type) {
    auto types = newList();
    types.push_back(type);
    entry.insert("input_dtypes", types);
    entry.insert("output_dtypes", types);
  }

  void addTimes(Dict& entry, const FlightRecord& record) const {
    entry.insert("time_created_ns", log_.epochOf(record.posted));
    entry.insert("time_discovered_started_ns", c10::IValue());
    const bool ended = record.state != FlightRecord::State::kPosted;
    entry.insert(
        "time_discovered_completed_ns",
        ended ? c10::IValue(log_.epochOf(record.ended)) : c10::IValue());
    entry.insert("retired", ended);
    entry.insert("timeout_ms", int64_t{0});
    if (record.state == FlightRecord::State::kFailed) {
      entry.insert("dlslime_error", int64_t(record.result));
    }
  }

  const FlightLog& log_;
  Dict groups_ = newDict();
  List entries_ = newList();
  std::map<std::string, int64_t> numbers_; // next number of each pair
};

} // namespace

void nameFlightGroup(
    uint64_t key,
    const std::string& name,
    int rank,
    const std::vector<uint64_t>& globalRanks) {
  auto& all = named();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.groups[key] = {name, rank, globalRanks};
  if (all.groups.size() > kMostNamed) {
    all.groups.erase(all.groups.begin());
  }
}

std::optional<uint64_t> firstGlobalRank() {
  auto& all = named();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.groups.empty()) {
    return std::nullopt;
  }
  const auto& first = all.groups.begin()->second;
  return first.globalOf(first.rank);
}

std::string pickledFlightLog(const FlightLog& log, bool forAnalyser) {
  return Pickle(log, forAnalyser).text();
}

} // namespace dlslime
