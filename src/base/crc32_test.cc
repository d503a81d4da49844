// SPDX-License-Identifier: Apache-2.0
// CRC-32: known sums, and the algebra by which pieces are put together.
// One thread.
// Owns nothing.
#include "base/crc32.h"

#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace headrace::base {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Bit by bit, from the definition.
uint32_t slow_crc32(std::span<const std::byte> bytes) {
  uint32_t sum = 0xFFFFFFFF;
  for (const std::byte byte : bytes) {
    sum ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit)
      sum = (sum & 1) != 0 ? (sum >> 1) ^ 0xEDB88320 : sum >> 1;
  }
  return ~sum;
}

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937 random(static_cast<uint32_t>(count));
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32, KnownSums) {
  EXPECT_EQ(crc32({}), 0U);
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xCBF43926U);  // the check value of the standard
}

TEST(Crc32, AgreesWithTheDefinitionAtEveryLength) {
  const std::vector<std::byte> text = random_bytes(1100);
  for (size_t length = 0; length < text.size(); length += 7)
    EXPECT_EQ(crc32(std::span(text).first(length)), slow_crc32(std::span(text).first(length))) << length;
}

TEST(Crc32, GoesOnFromASum) {
  const std::vector<std::byte> text = random_bytes(5000);
  const uint32_t first = crc32(std::span(text).first(1234));
  EXPECT_EQ(crc32(std::span(text).subspan(1234), first), slow_crc32(text));
}

TEST(Crc32, PiecesInAnyOrderMakeTheSumOfTheWhole) {
  const std::vector<std::byte> text = random_bytes(10'000);
  const size_t cuts[] = {0, 1, 4096, 4097, 9000, 10'000};
  for (const bool backwards : {false, true}) {
    uint32_t sum = 0;
    for (size_t i = 0; i < 5; ++i) {
      const size_t at = backwards ? 4 - i : i;
      const std::span<const std::byte> piece = std::span(text).subspan(cuts[at], cuts[at + 1] - cuts[at]);
      sum ^= crc32_contribution(crc32(piece), text.size() - cuts[at + 1]);
    }
    EXPECT_EQ(sum, slow_crc32(text));
  }
}

TEST(Crc32, ContributionsOverManyBytes) {
  // A text of 2^40 zeros behind one byte, in one step and in two.
  const uint32_t one = crc32(bytes_of("x"));
  const uint64_t half = uint64_t{1} << 39;
  EXPECT_EQ(crc32_contribution(crc32_contribution(one, half), half), crc32_contribution(one, half * 2));
  EXPECT_EQ(crc32_contribution(one, 0), one);
  EXPECT_EQ(crc32_contribution(0, UINT64_MAX), 0U);
}

TEST(Crc32, SaysWhatItUses) {
  EXPECT_TRUE(crc32_implementation() == "isa-l" || crc32_implementation() == "libdeflate") << crc32_implementation();
}

}  // namespace
}  // namespace headrace::base
