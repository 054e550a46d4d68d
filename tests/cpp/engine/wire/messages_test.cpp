// Compares the tables of docs/protocol.md, with the members of the header used
// by each message, to the structs, and the structs to the header.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/wire/gpu_messages.h"
#include "engine/wire/group_messages.h"
#include "engine/wire/one_sided_messages.h"
#include "engine/wire/two_sided_messages.h"

namespace dlslime::wire {
namespace {

using Row = std::map<std::string, std::string>; // by the column's name
using Rows = std::map<std::string, Row>; // by the first cell

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(' ');
  const auto last = text.find_last_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

std::vector<std::string> cellsOf(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream rest(line.substr(1)); // behind the first bar
  for (std::string cell; std::getline(rest, cell, '|');) {
    cells.push_back(trimmed(cell));
  }
  return cells;
}

// Returns the rows of all tables with the given name of the first column,
// without first cells and empty cells.
Rows rowsOf(const std::string& firstColumn) {
  std::ifstream document(PROTOCOL_DOCUMENT);
  Rows rows;
  std::vector<std::string> columns;
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("|")) {
      columns.clear();
      continue;
    }
    const auto cells = cellsOf(line);
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    if (columns[0] != firstColumn || cells[0].starts_with("---")) {
      continue;
    }
    auto& row = rows[cells[0]];
    for (size_t i = 1; i < cells.size(); ++i) {
      if (!cells[i].empty()) {
        row[columns.at(i)] = cells[i];
      }
    }
  }
  return rows;
}

class MessagesTest : public ::testing::Test {
 protected:
  // Makes the row that the document should have.
  template <typename Message>
  void add(const std::string& name) {
    auto& row = coded_[name];
    row["type"] = std::to_string(static_cast<int>(Message::kType));
    const Message message;
    Message::fields(
        message, [&](const char* field, const auto& /*value*/, auto place) {
          place.members([&](const char* member) {
            EXPECT_TRUE(row.emplace(member, field).second)
                << name << "::" << field << " shares " << member;
          });
        });
    roundTrip<Message>(name);
  }
  // Checks that decoding inverts encoding, whatever the header's bytes.
  template <typename Message>
  static void roundTrip(const std::string& name) {
    MessageHeader header;
    std::memset(static_cast<void*>(&header), 1, sizeof(header));
    const auto message = decode<Message>(header);
    const auto encoded = encode(message);
    EXPECT_EQ(encoded.type, Message::kType);
    EXPECT_EQ(encoded.sequence, 0U);
    const auto again = encode(decode<Message>(encoded));
    EXPECT_EQ(std::memcmp(&encoded, &again, sizeof(header)), 0) << name;
    Message::fields(
        message, [&](const char* field, const auto& value, auto place) {
          auto copy = value;
          place.get(encoded, copy);
          EXPECT_TRUE(same(copy, value)) << name << "::" << field;
        });
    auto other = header;
    rewrite(other, message);
    EXPECT_EQ(other.sequence, header.sequence);
    EXPECT_EQ(other.payloadSize, 0U);
  }
  template <typename Value>
  static bool same(const Value& one, const Value& other) {
    return one == other;
  }
  static bool same(const RemoteBuffer& one, const RemoteBuffer& other) {
    return one.address == other.address && one.keys == other.keys &&
        one.slot == other.slot;
  }

  Rows coded_;
};

TEST_F(MessagesTest, AreAsDocumented) {
  add<Join>("Join");
  add<Joined>("Joined");
  add<Stale>("Stale");
  add<Leave>("Leave");
  add<Refused>("Refused");
  add<Eager>("Eager");
  add<Rts>("Rts");
  add<StreamRequest>("StreamRequest");
  add<Data>("Data");
  add<Finish>("Finish");
  add<Revoke>("Revoke");
  add<Credit>("Credit");
  add<Truncated>("Truncated");
  add<Rtr>("Rtr");
  add<Retract>("Retract");
  add<Retracted>("Retracted");
  add<Moved>("Moved");
  add<Resolve>("Resolve");
  add<Resolved>("Resolved");
  add<RevokeKey>("RevokeKey");
  add<KeyRevoked>("KeyRevoked");
  add<GetRequest>("GetRequest");
  add<GetData>("GetData");
  add<Put>("Put");
  add<PutAck>("PutAck");
  add<Share>("Share");
  add<Unshare>("Unshare");
  add<Reshare>("Reshare");
  add<Nop>("Nop");
  EXPECT_EQ(coded_.size(), static_cast<size_t>(kLastMessageType));
  EXPECT_EQ(rowsOf("message"), coded_);
}

TEST_F(MessagesTest, HeaderIsAsDocumented) {
  Rows coded;
  const auto add = [&](const char* name, size_t offset, size_t size) {
    coded[name]["place"] = std::to_string(offset) + ":" + std::to_string(size);
  };
#define MEMBER(name) \
  add(#name, offsetof(MessageHeader, name), sizeof(MessageHeader::name))
  MEMBER(type);
  MEMBER(status);
  MEMBER(slot);
  MEMBER(group);
  MEMBER(sequence);
  MEMBER(source);
  MEMBER(tag);
  MEMBER(length);
  MEMBER(id);
  MEMBER(offset);
  MEMBER(address);
  MEMBER(key);
  MEMBER(payloadSize);
#undef MEMBER
  auto documented = rowsOf("member");
  for (auto& [name, row] : documented) {
    EXPECT_EQ(row.erase("meaning"), 1U) << name;
  }
  EXPECT_EQ(documented, coded);
}

TEST_F(MessagesTest, PushedIsNotForThePeerToSend) {
  EXPECT_GT(MessageType::kPushed, kLastMessageType);
  roundTrip<Pushed>("Pushed");
}

} // namespace
} // namespace dlslime::wire
