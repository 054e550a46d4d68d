#include "engine/inspect/json.h"

#include <gtest/gtest.h>

#include <limits>

namespace dlslime::testing {
namespace {

TEST(Json, ObjectsAndListsNest) {
  JsonWriter json;
  json.open('{').member("a", 1).key("b").open('[');
  json.open('{').close('}').open('{').member("c", "d").close('}').value(2);
  json.close(']').member("e", -3).close('}');
  EXPECT_EQ(json.take(), R"({"a":1,"b":[{},{"c":"d"},2],"e":-3})");
}

TEST(Json, EmptyListAndTheMemberAfterIt) {
  JsonWriter json;
  json.open('{').key("a").open('[').close(']').member("b", "").close('}');
  EXPECT_EQ(json.take(), R"({"a":[],"b":""})");
}

TEST(Json, QuotesAndControlCharactersAreEscaped) {
  JsonWriter json;
  json.open('[').value("say \"a\\b\"\n\x01\x1f").close(']');
  EXPECT_EQ(json.take(), R"(["say \"a\\b\"\u000a\u0001\u001f"])");
}

TEST(Json, BytesAbove127StayAsTheyAre) {
  JsonWriter json;
  json.open('[').value("gr\xc3\xbc\xc3\x9f").close(']');
  EXPECT_EQ(json.take(), "[\"gr\xc3\xbc\xc3\x9f\"]");
}

TEST(Json, LargestNumbersAreWhole) {
  JsonWriter json;
  json.open('[')
      .value(std::numeric_limits<uint64_t>::max())
      .value(std::numeric_limits<int64_t>::min())
      .close(']');
  EXPECT_EQ(json.take(), "[18446744073709551615,-9223372036854775808]");
}

} // namespace
} // namespace dlslime::testing
