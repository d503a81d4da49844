// SPDX-License-Identifier: Apache-2.0
// The streams that verify and convert stand on: ranges of files of every size and gap, and bytes asked for out of order.
// One thread beside the handle's.
// Owns the files it makes.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "convert/range_stream.h"
#include "convert/streamed_source.h"
#include "tests/support/files.h"

namespace headrace::convert {
namespace {

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937_64 random(5);
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i + 8 <= count; i += 8) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + i, &value, 8);
  }
  return bytes;
}

class Streams : public ::testing::Test {
 protected:
  Streams() : bytes_(random_bytes((size_t{90} << 20) + 12345)) {
    test::write_file(folder_.file("a"), bytes_);
    test::drop_from_cache(folder_.file("a"));
  }
  std::vector<File> files() { return {*File::open(folder_.file("a"), FileMode::read)}; }

  test::TestFolder folder_;
  std::vector<std::byte> bytes_;
  Handle handle_ = *Handle::create();
};

TEST_F(Streams, RangesComeInOrderWithoutAGapWhateverTheirSizes) {
  std::mt19937_64 random(11);
  std::vector<FileRange> ranges;
  uint64_t at = 3;
  while (at < bytes_.size()) {
    // Small ones, empty ones, ones longer than all slots together; next to each other and far apart; sometimes backwards.
    constexpr uint64_t kSizes[] = {0, 1, 7, 4096, 65536, 5'000'000};
    const uint64_t bytes = std::min<uint64_t>(kSizes[random() % 6] + random() % 3, bytes_.size() - at);
    ranges.push_back({.file = 0, .offset_bytes = at, .bytes = bytes});
    at += bytes + (random() % 4 == 0 ? random() % 300'000 : random() % 100);
    if (random() % 50 == 0) ranges.push_back({.file = 0, .offset_bytes = random() % 1000, .bytes = 100});
  }
  ranges.push_back({.file = 0, .offset_bytes = 0, .bytes = bytes_.size()});
  RangeStream stream = *RangeStream::create(handle_, files(), ranges, {});
  size_t range = 0;
  uint64_t offset = 0;
  while (true) {
    const Result<std::optional<Piece>> piece = stream.next();
    ASSERT_TRUE(piece.has_value()) << piece.error().message();
    while (range < ranges.size() && offset == ranges[range].bytes) {
      ++range;
      offset = 0;
    }
    if (!*piece) break;
    ASSERT_EQ((*piece)->item, range);
    ASSERT_EQ((*piece)->offset_bytes, offset);
    ASSERT_FALSE((*piece)->bytes.empty());
    ASSERT_EQ(std::memcmp((*piece)->bytes.data(), bytes_.data() + ranges[range].offset_bytes + offset,
                          (*piece)->bytes.size()),
              0);
    offset += (*piece)->bytes.size();
  }
  EXPECT_EQ(range, ranges.size());
}

TEST_F(Streams, AFileThatEndsEarlyIsAnErrorWithItsPlace) {
  RangeStream stream =
      *RangeStream::create(handle_, files(), {{.file = 0, .offset_bytes = bytes_.size() - 10, .bytes = 20}}, {});
  const Result<std::optional<Piece>> piece = stream.next();
  ASSERT_FALSE(piece.has_value());
  EXPECT_EQ(piece.error().code, ErrorCode::end_of_file);
}

TEST_F(Streams, AnInterruptionEndsTheStream) {
  bool stop = false;
  RangeStream stream = *RangeStream::create(handle_, files(), {{.file = 0, .offset_bytes = 0, .bytes = bytes_.size()}},
                                            [&] { return stop; });
  ASSERT_TRUE(stream.next().has_value());
  stop = true;
  Result<std::optional<Piece>> piece = stream.next();
  while (piece && *piece)
    piece = stream.next();
  ASSERT_FALSE(piece.has_value());
  EXPECT_EQ(piece.error().code, ErrorCode::interrupted);
}

TEST_F(Streams, ASourceGivesWhatWasPassedOverAndWhatWasNotKept) {
  // Items of 9 MiB: what is passed over is more than is kept (64 MiB).
  constexpr uint64_t kItem = (uint64_t{9} << 20) + 5;
  std::vector<FileRange> ranges;
  std::vector<uint64_t> sizes;
  for (uint64_t i = 0; i < 10; ++i) {
    ranges.push_back({.file = 0, .offset_bytes = i * kItem, .bytes = std::min(kItem, bytes_.size() - i * kItem)});
    sizes.push_back(ranges.back().bytes);
  }
  int opened = 0;
  StreamedSource source(sizes, [&](size_t first) -> Result<StreamedSource::Next> {
    ++opened;
    auto stream = std::make_shared<RangeStream>(
        *RangeStream::create(handle_, files(), {ranges.begin() + static_cast<ptrdiff_t>(first), ranges.end()}, {}));
    return [stream] { return stream->next(); };
  });
  const auto copy = source.copier();
  const auto expect = [&](size_t item, uint64_t offset, uint64_t bytes) {
    ConstRegion region = source.region(item);
    ASSERT_EQ(region.bytes, sizes[item]);
    region.data += offset;
    std::vector<std::byte> target(bytes);
    ASSERT_TRUE(copy(region, target).has_value());
    EXPECT_EQ(std::memcmp(target.data(), bytes_.data() + ranges[item].offset_bytes + offset, bytes), 0)
        << item << " " << offset;
  };
  expect(0, 100, 5000);
  expect(1, 0, 10);
  expect(0, 0, 100);              // passed over, kept
  expect(0, 6000, kItem - 6000);  // passed over in several pieces
  EXPECT_EQ(opened, 1);
  expect(9, 7, 1000);  // passes over 72 MiB
  expect(8, kItem - 100, 100);
  EXPECT_EQ(opened, 2);  // too much was passed over to be kept
  expect(9, 1007, 10);
  for (const uint64_t tail : {uint64_t{50}, uint64_t{40}, uint64_t{30}}) {
    expect(8, kItem - tail, 10);  // each behind the one before, but the first: goes on from there
    expect(9, 2000 - tail, 10);
  }
  EXPECT_EQ(opened, 3);
  expect(8, 0, 10);
  EXPECT_EQ(opened, 4);
}

}  // namespace
}  // namespace headrace::convert
