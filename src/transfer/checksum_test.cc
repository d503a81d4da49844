// SPDX-License-Identifier: Apache-2.0
// Requests that ask for the CRC-32 of their bytes: staged and straight, gathered, split over workers, sent again.
// One thread beside the workers.
// Owns nothing.
#include <cerrno>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "base/crc32.h"
#include "tests/support/random_load.h"
#include "tests/support/sim_world.h"

namespace headrace::transfer {
namespace {

using namespace headrace::test;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(Checksum, OfALongReadIsThatOfTheBytes) {
  World world({}, {.workers = 2, .block_bytes = 64 << 10});
  const std::vector<std::byte> bytes = pattern(9 * kMiB + 77);
  world.system.put("/f", bytes);
  const File file = open_sim(world.system, "/f", FileMode::read);
  for (const CopyMode copy : {CopyMode::always, CopyMode::automatic, CopyMode::never}) {
    Buffer target = buffer_of(bytes.size());
    const Transfer read = *world.handle.read(
        file, {.target = {target.data(), target.bytes(), {}}, .copy = copy, .checksum = Checksum::crc32});
    ASSERT_EQ(read.result().value(), bytes.size());
    EXPECT_EQ(read.crc32(), base::crc32(bytes));
  }
}

TEST(Checksum, OfAGatheredWriteIsThatOfItsRegionsInOrder) {
  World world({}, {.workers = 2, .block_bytes = 64 << 10});
  const std::vector<std::byte> bytes = pattern(3 * kMiB);
  const File file = open_sim(world.system, "/f", FileMode::update);
  const std::vector<ConstRegion> regions = {{bytes.data() + 2 * kMiB, kMiB, {}}, {bytes.data(), 5, {}}};
  const Transfer write =
      *world.handle.write(file, {.offset_bytes = 3, .sources = regions, .checksum = Checksum::crc32});
  ASSERT_EQ(write.result().value(), kMiB + 5);
  EXPECT_EQ(write.crc32(), base::crc32(std::span(bytes).first(5), base::crc32(std::span(bytes).subspan(2 * kMiB))));
}

TEST(Checksum, OfNothingIsZero) {
  World world;
  const File file = open_sim(world.system, "/f", FileMode::update);
  const Transfer write = *world.handle.write(file, {.checksum = Checksum::crc32});
  ASSERT_TRUE(write.result().has_value());
  EXPECT_EQ(write.crc32(), 0u);
}

TEST(Checksum, IsNotThereWhenNotAskedForOrNotEveryByteCame) {
  World world;
  world.system.put("/f", pattern(5000));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(8000);
  const Transfer plain = *world.handle.read(file, {.target = {target.data(), 5000, {}}});
  const Transfer cut = *world.handle.read(file, {.target = {target.data(), target.size(), {}},
                                                 .end_of_file = EndOfFile::is_a_count,
                                                 .checksum = Checksum::crc32});
  ASSERT_EQ(plain.result().value(), 5000u);
  ASSERT_EQ(cut.result().value(), 5000u);
  EXPECT_EQ(plain.crc32(), std::nullopt);
  EXPECT_EQ(cut.crc32(), std::nullopt);
}

// Two writes share a block; the disk refuses the second half of it once, and each is sent again alone.
TEST(Checksum, OfWritesThatWereSentAgainCountsEachByteOnce) {
  World world({}, {.workers = 1});
  const std::vector<std::byte> bytes = pattern(8192);
  const File file = open_sim(world.system, "/f", FileMode::update);
  const auto calls = std::make_shared<int>(0);
  world.disk.set_script([calls](const SimIo&) -> std::optional<int64_t> {
    switch ((*calls)++) {
      case 0: return 2048;  // short
      case 1: return -EIO;
      default: return std::nullopt;
    }
  });
  const std::vector<WriteItem> items = {
      {file, {.source = {bytes.data(), 4096, {}}, .copy = CopyMode::always, .checksum = Checksum::crc32}},
      {file,
       {.offset_bytes = 4096,
        .source = {bytes.data() + 4096, 4096, {}},
        .copy = CopyMode::always,
        .checksum = Checksum::crc32}}};
  const std::vector<Transfer> writes = *world.handle.write_many(items);
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(writes[i].result().value(), 4096u);
    EXPECT_EQ(writes[i].crc32(), base::crc32(std::span(bytes).subspan(4096 * i, 4096)));
  }
  EXPECT_GE(*calls, 4);
}

}  // namespace
}  // namespace headrace::transfer
