// Compares the tables of docs/protocol.md, with the fields of the records of
// the handshake and of the store, to the records.

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/bootstrap/wire_records.h"

namespace dlslime {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>; // name, type

template <typename Value>
std::string typeName(const Value& /*value*/) {
  if constexpr (std::is_same_v<Value, bool> || std::is_enum_v<Value>) {
    return "u8";
  } else {
    static_assert(std::is_integral_v<Value>);
    return (std::is_signed_v<Value> ? "i" : "u") +
        std::to_string(8 * sizeof(Value));
  }
}
std::string typeName(const std::string& /*value*/) {
  return "text";
}
std::string typeName(const Bytes& /*value*/) {
  return "bytes";
}
std::string typeName(const PeerIdentity& /*value*/) {
  return "identity";
}
std::string typeName(const std::vector<std::string>& /*value*/) {
  return "list of texts";
}
std::string typeName(
    const std::vector<std::pair<std::string, std::string>>& /*value*/) {
  return "list of two texts";
}

template <typename Record>
Fields codedFields() {
  Fields fields;
  const Record record;
  Record::fields(record, [&](const char* name, const auto& value) {
    fields.emplace_back(name, typeName(value));
  });
  return fields;
}

// Returns the rows of the table whose first column is "field of `record`".
Fields documentedFields(const std::string& record) {
  std::ifstream document(PROTOCOL_DOCUMENT);
  const std::string head = "| field of " + record + " | ";
  Fields fields;
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("| ")) {
      inside = inside && line.starts_with("|--");
      continue;
    }
    if (inside) {
      const auto end = line.find(" |", 2);
      const auto last = line.find(" |", end + 2);
      fields.emplace_back(
          line.substr(2, end - 2), line.substr(end + 3, last - end - 3));
    }
    inside |= line.starts_with(head);
  }
  return fields;
}

TEST(RecordTables, AreAsDocumented) {
  EXPECT_EQ(
      codedFields<AddressRecord>(), documentedFields("the address record"));
  EXPECT_EQ(codedFields<Greeting>(), documentedFields("Greeting"));
  EXPECT_EQ(codedFields<Challenge>(), documentedFields("Challenge"));
  EXPECT_EQ(codedFields<Hello>(), documentedFields("Hello"));
  EXPECT_EQ(codedFields<Welcome>(), documentedFields("Welcome"));
  EXPECT_EQ(codedFields<Confirm>(), documentedFields("Confirm"));
}

} // namespace
} // namespace dlslime
