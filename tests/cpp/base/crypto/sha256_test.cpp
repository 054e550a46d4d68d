// SHA-256 and HMAC by the vectors of FIPS 180-4 and RFC 4231.
#include "base/crypto/sha256.h"

#include <gtest/gtest.h>

#include <string>

#include "fakes/hex.h"

namespace dlslime::testing {
namespace {

ByteSpan bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string hashOf(const std::string& text) {
  return toHex(Sha256().add(bytesOf(text)).finish());
}

TEST(Sha256, VectorsOfTheStandard) {
  EXPECT_EQ(
      hashOf("abc"),
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(
      hashOf(""),
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(
      hashOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(
      hashOf("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
             "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(
      hashOf(std::string(1000000, 'a')),
      "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PartsAreAsTheWhole) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += static_cast<char>(i);
    const auto bytes = bytesOf(text);
    for (const size_t cut : {size_t{1}, size_t{63}, size_t{64}, size_t{65}}) {
      const size_t first = std::min(cut, bytes.size());
      Sha256 parts;
      parts.add(bytes.first(first)).add(bytes.subspan(first));
      ASSERT_EQ(toHex(parts.finish()), hashOf(text)) << i << " " << cut;
    }
  }
}

TEST(Hmac, VectorsOfTheStandard) {
  struct Vector {
    Bytes key, data;
    std::string code;
  };
  const Vector vectors[] = {
      {Bytes(20, std::byte{0x0b}),
       fromHex("4869205468657265"),
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {fromHex("4a656665"),
       fromHex("7768617420646f2079612077616e7420666f72206e6f7468696e673f"),
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {Bytes(20, std::byte{0xaa}),
       Bytes(50, std::byte{0xdd}),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {fromHex("0102030405060708090a0b0c0d0e0f10111213141516171819"),
       Bytes(50, std::byte{0xcd}),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {Bytes(131, std::byte{0xaa}), // longer than a block
       fromHex("54657374205573696e67204c6172676572205468616e20426c6f636b2d"
               "53697a65204b6579202d2048617368204b6579204669727374"),
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"}};
  for (const auto& vector : vectors) {
    EXPECT_EQ(toHex(Hmac(vector.key).add(vector.data).finish()), vector.code);
  }
}

} // namespace
} // namespace dlslime::testing
