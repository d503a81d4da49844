// SPDX-License-Identifier: Apache-2.0
// How errors read.
#include <headrace/error.h>

#include <cerrno>

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Error, MessageNamesOperationPathRangeErrnoAndRemedy) {
  const Error error = {.errno_value = ENOSPC,
                       .operation = "write",
                       .path = "/a/b",
                       .offset_bytes = 10,
                       .length_bytes = 20,
                       .transferred_bytes = 5,
                       .detail = "free some space"};
  const std::string message = error.message();
  for (const char* part : {"write", "/a/b", "10", "20", "ENOSPC", "No space left", "5 bytes", "free some space"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(Error, MessageWithoutAnErrnoSaysInWordsWhatHappened) {
  EXPECT_EQ((Error{.code = ErrorCode::closed, .operation = "submit"}.message()), "submit: closed");
  const Error ended = {.code = ErrorCode::end_of_file,
                       .operation = "read",
                       .path = "f",
                       .length_bytes = 20,
                       .transferred_bytes = 5,
                       .detail = "read less"};
  EXPECT_EQ(ended.message(), "read of 'f' at offset 0, length 20: end of file, 5 bytes transferred; read less");
}

TEST(Error, MessageWithoutRangeAndErrnoIsTheDetail) {
  const Error error = {.code = ErrorCode::invalid_argument, .operation = "create handle", .detail = "workers is 65"};
  EXPECT_EQ(error.message(), "create handle: workers is 65");
}

TEST(Error, NoMessageHoldsTheNameOfAnEnumerator) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::corrupt); ++code)
    EXPECT_EQ(Error{.code = static_cast<ErrorCode>(code)}.message().find('_'), std::string::npos) << code;
}

TEST(Error, EveryCodeHasAName) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::corrupt); ++code) {
    EXPECT_NE(error_code_name(static_cast<ErrorCode>(code)), "unknown");
  }
}

TEST(Error, ErrnosAreNamedAndStrangeOnesToo) {
  EXPECT_EQ(errno_name(EIO), "EIO");
  EXPECT_EQ(errno_name(5027), "E?");
  EXPECT_EQ(errno_name(-1), "E?");
}

}  // namespace
}  // namespace headrace
