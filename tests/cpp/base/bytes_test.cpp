#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "fakes/world.h"

namespace dlslime {
namespace {

TEST(BytesTest, NumbersAreLittleEndian) {
  ByteWriter writer;
  writer.number(uint32_t{0x01020304});
  EXPECT_EQ(
      writer.take(),
      (Bytes{std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1}}));
}

template <typename T>
void expectRoundTrip() {
  const auto least = std::numeric_limits<T>::min();
  const auto most = std::numeric_limits<T>::max();
  ByteWriter writer;
  for (const T value : {T{0}, T{1}, least, most, static_cast<T>(most / 3)}) {
    writer.number(value);
  }
  const Bytes bytes = writer.take();
  ByteReader reader(bytes);
  for (const T value : {T{0}, T{1}, least, most, static_cast<T>(most / 3)}) {
    EXPECT_EQ(reader.number<T>(), value);
  }
  EXPECT_TRUE(reader.atEnd());
}

TEST(BytesTest, NumbersOfEveryTypeComeBack) {
  expectRoundTrip<uint8_t>();
  expectRoundTrip<int8_t>();
  expectRoundTrip<uint16_t>();
  expectRoundTrip<int16_t>();
  expectRoundTrip<uint32_t>();
  expectRoundTrip<int32_t>();
  expectRoundTrip<uint64_t>();
  expectRoundTrip<int64_t>();
}

TEST(BytesTest, TextsAndBlobsComeBack) {
  ByteWriter writer;
  writer.text("");
  writer.text(std::string("a\0b", 3));
  writer.blob(testing::pattern(300));
  writer.raw(testing::pattern(2));
  const Bytes bytes = writer.take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.text(), "");
  EXPECT_EQ(reader.text(), std::string("a\0b", 3));
  const auto blob = reader.blob();
  EXPECT_EQ(Bytes(blob.begin(), blob.end()), testing::pattern(300));
  EXPECT_FALSE(reader.atEnd());
  EXPECT_EQ(reader.raw(2).size(), 2U);
  EXPECT_TRUE(reader.atEnd());
}

TEST(BytesTest, ShortReadGivesZeroAndStaysFailed) {
  const Bytes bytes = testing::pattern(3);
  ByteReader reader(bytes);
  EXPECT_EQ(reader.number<uint32_t>(), 0U);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.number<uint8_t>(), 0U);
  EXPECT_EQ(reader.text(), "");
  EXPECT_FALSE(reader.atEnd());
}

TEST(BytesTest, LengthBeyondTheEndGivesAnEmptyText) {
  ByteWriter writer;
  writer.number(uint32_t{0xffffffff});
  writer.raw(testing::pattern(10));
  const Bytes bytes = writer.take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.text(), "");
  EXPECT_FALSE(reader.ok());
}

TEST(BytesTest, EmptyInputIsAtItsEnd) {
  ByteReader reader({});
  EXPECT_TRUE(reader.atEnd());
  reader.raw(0);
  EXPECT_TRUE(reader.atEnd());
  reader.number<uint8_t>();
  EXPECT_FALSE(reader.ok());
}

TEST(BytesTest, RandomReadsNeverLeaveTheInput) {
  std::mt19937 random(1);
  for (int round = 0; round < 5000; ++round) {
    Bytes bytes(random() % 64);
    for (auto& byte : bytes) {
      byte = static_cast<std::byte>(random() % 3 == 0 ? random() : 0);
    }
    ByteReader reader(bytes);
    for (int i = 0; i < 10; ++i) {
      const auto span =
          random() % 2 == 0 ? reader.blob() : reader.raw(random() % 40);
      for (const auto byte : span) {
        static_cast<void>(byte);
      }
      reader.number<uint16_t>();
    }
  }
}

} // namespace
} // namespace dlslime
