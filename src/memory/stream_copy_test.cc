// SPDX-License-Identifier: Apache-2.0
// Every size and alignment gives the same bytes as memcpy and touches none beside them.
#include "memory/stream_copy.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace headrace::memory {
namespace {

constexpr uint64_t kMargin = 128;

TEST(StreamCopy, MovesTheBytesAndNoOthers) {
  std::mt19937_64 random(1);
  std::vector<std::byte> source(4096);
  for (std::byte& byte : source)
    byte = static_cast<std::byte>(random());
  for (const uint64_t bytes : {0U, 1U, 15U, 16U, 63U, 64U, 65U, 127U, 128U, 1000U, 2048U}) {
    for (uint64_t target_skew = 0; target_skew < 65; ++target_skew) {
      for (const uint64_t source_skew : {0U, 1U, 8U, 63U}) {
        std::vector<std::byte> target(kMargin + bytes + kMargin, std::byte{0xAA});
        std::vector<std::byte> expected = target;
        std::memcpy(expected.data() + target_skew, source.data() + source_skew, bytes);
        stream_copy(target.data() + target_skew, source.data() + source_skew, bytes);
        ASSERT_EQ(target, expected) << bytes << " bytes from " << source_skew << " to " << target_skew;
      }
    }
  }
}

}  // namespace
}  // namespace headrace::memory
