// SPDX-License-Identifier: Apache-2.0
// valid_utf8_bytes at the edges of Unicode's table 3-7.
#include "format/utf8.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace headrace::format {
namespace {

size_t valid(std::string_view text, Surrogates surrogates = Surrogates::refuse) {
  return valid_utf8_bytes(std::as_bytes(std::span(text)), surrogates);
}

TEST(Utf8, WholeCharactersOfEachLengthAreValid) {
  for (const std::string_view text :
       {"", "plain", "a text that is longer than eight bytes", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80",
        "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(valid(text), text.size()) << text;
  EXPECT_EQ(valid(std::string_view("\0", 1)), 1U);
}

TEST(Utf8, BrokenCharactersEndTheValidPart) {
  for (const std::string_view text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2 ", "\xe0\x9f\xbf", "\xe0\xa0", "\xe1\x80\xc0",
        "\xf0\x8f\xbf\xbf", "\xf0\x90\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(valid(text), 0U) << text;
    EXPECT_EQ(valid("12345678ab" + std::string(text)), 10U) << text;
  }
}

TEST(Utf8, LoneSurrogatesAreValidOnlyOnRequest) {
  for (const std::string_view text : {"\xed\xa0\x80", "\xed\xbf\xbf"}) {
    EXPECT_EQ(valid(text), 0U);
    EXPECT_EQ(valid(text, Surrogates::accept), 3U);
  }
}

}  // namespace
}  // namespace headrace::format
