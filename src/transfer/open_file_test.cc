// SPDX-License-Identifier: Apache-2.0
// What becomes of a file that this library created when writes into it fail.
#include "transfer/open_file.h"

#include <algorithm>
#include <cerrno>

#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/sim_world.h"

namespace headrace::transfer {
namespace {

using namespace headrace::test;

bool write_fails(World& world, const File& file, uint64_t offset, uint64_t length) {
  const std::vector<std::byte> source(length, std::byte{9});
  return !world.handle.write(file, {.offset_bytes = offset, .source = {source.data(), length, {}}})
              ->result()
              .has_value();
}

TEST(OpenFile, AFileOfWhichNothingWasWrittenIsRemoved) {
  for (const FileMode mode : {FileMode::update, FileMode::create, FileMode::truncate}) {
    World world;
    File file = open_sim(world.system, "/f", mode);
    world.system.get("/f")->capacity = 0;
    EXPECT_TRUE(write_fails(world, file, 0, 10'000));
    file = File();
    EXPECT_EQ(world.system.get("/f"), nullptr);
  }
}

TEST(OpenFile, AFileIsCutToTheEndOfWhatWasWritten) {
  World world({}, {.workers = 1, .block_bytes = 4096});
  File file = open_sim(world.system, "/f", FileMode::update);
  world.system.get("/f")->bad = {{.begin = 40'960, .end = 45'056}};
  EXPECT_TRUE(write_fails(world, file, 0, 100'000));
  EXPECT_GT(world.system.bytes_of("/f").size(), 40'960u) << "later blocks had been written";
  file = File();
  EXPECT_EQ(world.system.bytes_of("/f"), std::vector<std::byte>(40'960, std::byte{9}));
}

TEST(OpenFile, ALongWriteGivesANewFileAllOfItsLengthButTheLastGranuleFirst) {
  constexpr uint64_t kBytes = (uint64_t{16} << 20) + 100;
  const std::vector<std::byte> source = pattern(kBytes);
  World world;
  File file = open_sim(world.system, "/f", FileMode::update);
  world.disk.hold();
  const Transfer transfer = *world.handle.write(file, {.source = {source.data(), kBytes, {}}});
  ASSERT_TRUE(world.disk.wait_for_taken(1));
  EXPECT_EQ(world.system.bytes_of("/f").size(), kBytes - 100) << "a reader can tell that it is not whole";
  world.disk.release();
  EXPECT_EQ(transfer.result().value(), kBytes);
  file = File();
  EXPECT_EQ(world.system.bytes_of("/f"), source);
}

TEST(OpenFile, ALongWriteThatFailsOrIsAbortedLeavesNoLengthOfUnwrittenBytes) {
  constexpr uint64_t kBytes = uint64_t{64} << 20;
  const Buffer source = buffer_of(kBytes, std::byte{9});
  for (const bool abort : {false, true}) {
    World world({}, {.workers = 1, .block_bytes = 1 << 20, .queue_depth = 1});
    File file = open_sim(world.system, "/f", FileMode::update);
    if (!abort) world.system.get("/f")->bad = {{.begin = 2 << 20, .end = 3 << 20}};
    world.disk.hold();
    Transfer transfer = *world.handle.write(file, {.source = {source.data(), kBytes, {}}});
    ASSERT_TRUE(world.disk.wait_for_taken(1));
    EXPECT_EQ(world.system.bytes_of("/f").size(), kBytes - 4096);
    if (abort) transfer.abort();
    world.disk.release();
    const Result<uint64_t> failed = transfer.result();
    ASSERT_FALSE(failed.has_value());
    file = File();
    EXPECT_EQ(world.system.bytes_of("/f"), std::vector<std::byte>(failed.error().transferred_bytes, std::byte{9}));
  }
}

TEST(OpenFile, TheCleanUpSparesWhatOthersWrote) {
  constexpr uint64_t kShard = uint64_t{16} << 20;
  const Buffer source = buffer_of(kShard, std::byte{9});
  World world({}, {.workers = 1, .block_bytes = 1 << 20, .queue_depth = 1});
  world.disk.hold();
  Transfer first;
  std::vector<Transfer> others;
  for (uint64_t shard = 0; shard < 3; ++shard) {  // each opens the file for itself, as writes by path do
    const File file = open_sim(world.system, "/f", FileMode::update);
    const Transfer transfer = *world.handle.write(
        file, {.offset_bytes = shard * kShard, .source = {source.data(), kShard, {}}, .priority = shard == 0 ? 1 : 0});
    shard == 0 ? first = transfer : others.emplace_back(transfer);
  }
  ASSERT_TRUE(world.disk.wait_for_taken(1));
  first.abort();
  world.disk.release();
  ASSERT_FALSE(first.result().has_value());
  for (const Transfer& other : others)
    EXPECT_EQ(other.result().value(), kShard);
  const std::vector<std::byte> bytes = world.system.bytes_of("/f");
  ASSERT_EQ(bytes.size(), 3 * kShard);
  EXPECT_TRUE(std::all_of(bytes.begin() + kShard, bytes.end(), [](std::byte byte) { return byte == std::byte{9}; }));
}

TEST(OpenFile, AWriterThatIsTriedAgainKeepsItsBytes) {
  constexpr uint64_t kBytes = uint64_t{16} << 20;
  const Buffer source = buffer_of(kBytes, std::byte{9});
  World world({}, {.workers = 1, .block_bytes = 1 << 20, .queue_depth = 1});
  world.disk.hold();
  Transfer first =
      *world.handle.write(open_sim(world.system, "/f", FileMode::update), {.source = {source.data(), kBytes, {}}});
  ASSERT_TRUE(world.disk.wait_for_taken(1));
  const Transfer again =
      *world.handle.write(open_sim(world.system, "/f", FileMode::update), {.source = {source.data(), kBytes, {}}});
  first.abort();
  world.disk.release();
  ASSERT_FALSE(first.result().has_value());
  EXPECT_EQ(again.result().value(), kBytes);
  EXPECT_EQ(world.system.bytes_of("/f"), std::vector<std::byte>(kBytes, std::byte{9}));
}

TEST(OpenFile, BytesOfAnotherProcessBelowAndBehindTheFailureStay) {
  World world({}, {.workers = 1, .block_bytes = 4096});
  File file = open_sim(world.system, "/f", FileMode::update);
  const std::shared_ptr<SimFile> sim = world.system.get("/f");
  sim->capacity = 40'960;
  sim->bytes.assign(8192, std::byte{5});  // somebody else's
  EXPECT_TRUE(write_fails(world, file, 40'960, 100'000));
  file = File();
  EXPECT_EQ(world.system.bytes_of("/f"), std::vector<std::byte>(8192, std::byte{5}));
  file = open_sim(world.system, "/g", FileMode::create);
  const std::shared_ptr<SimFile> longer = world.system.get("/g");
  longer->bad = {{.begin = 0, .end = 1 << 20}};
  EXPECT_TRUE(write_fails(world, file, 0, 100'000));
  longer->bytes.resize(200'000);
  longer->bytes.back() = std::byte{5};
  file = File();
  EXPECT_EQ(world.system.bytes_of("/g").size(), 200'000u);
}

TEST(OpenFile, ARefusedWriteLeavesNoNewFileAndCutsNoOldOne) {
  World world({}, {.workers = 1, .requests_max = 1, .when_full = WhenFull::fail});
  world.system.put("/old", pattern(5000));
  world.system.put("/busy", {});
  world.disk.hold();
  std::vector<std::byte> source(5000);
  const Transfer busy =
      *world.handle.write(open_sim(world.system, "/busy", FileMode::update), {.source = {source.data(), 5000, {}}});
  const auto refused = [&](const char* path, FileMode mode, Truncate truncate) {
    return world.handle
        .write(open_sim(world.system, path, mode), {.source = {source.data(), 100, {}}, .truncate = truncate})
        .error()
        .code;
  };
  EXPECT_EQ(refused("/old", FileMode::update, Truncate::at_start), ErrorCode::limit_reached);
  EXPECT_EQ(world.system.bytes_of("/old"), pattern(5000));
  EXPECT_EQ(refused("/new", FileMode::create, Truncate::no), ErrorCode::limit_reached);
  EXPECT_EQ(world.system.get("/new"), nullptr);
  world.disk.release();
  EXPECT_EQ(busy.result().value(), 5000u);
  EXPECT_EQ(world.handle
                .write(open_sim(world.system, "/old", FileMode::update),
                       {.source = {source.data(), 100, {}}, .truncate = Truncate::at_start})
                ->result()
                .value(),
            100u);
  EXPECT_EQ(world.system.bytes_of("/old").size(), 100u);
}

TEST(OpenFile, AFileThatIsLongerAlreadyDoesNotShrink) {
  constexpr uint64_t kBytes = uint64_t{16} << 20;
  const Buffer source = buffer_of(kBytes, std::byte{9});
  World world;
  File file = open_sim(world.system, "/f", FileMode::update);
  world.system.get("/f")->bytes = pattern(kBytes + 12'345);  // another writer was faster
  EXPECT_EQ(world.handle.write(file, {.source = {source.data(), kBytes, {}}})->result().value(), kBytes);
  file = File();
  const std::vector<std::byte> bytes = world.system.bytes_of("/f");
  ASSERT_EQ(bytes.size(), kBytes + 12'345);
  EXPECT_TRUE(holds_pattern(bytes.data() + kBytes, 12'345, kBytes));
}

TEST(OpenFile, AFileThatWasThereBeforeKeepsItsLength) {
  World world;
  world.system.put("/f", pattern(50'000))->bad = {{.begin = 0, .end = 4096}};
  File file = open_sim(world.system, "/f", FileMode::update);
  EXPECT_TRUE(write_fails(world, file, 0, 4096));
  file = File();
  EXPECT_EQ(world.system.bytes_of("/f"), pattern(50'000));
}

TEST(OpenFile, CreateRemovesAFileWhoseFirstWriteFailedHalfWay) {
  World world;
  File file = open_sim(world.system, "/f", FileMode::create);
  world.system.get("/f")->capacity = 8192;
  EXPECT_TRUE(write_fails(world, file, 0, 10'000));
  file = File();
  EXPECT_EQ(world.system.get("/f"), nullptr);
}

TEST(OpenFile, CreateKeepsWhatAnotherRequestWrote) {
  World world;
  File file = open_sim(world.system, "/f", FileMode::create);
  world.system.get("/f")->capacity = 8192;
  EXPECT_FALSE(write_fails(world, file, 0, 8000));
  EXPECT_TRUE(write_fails(world, file, 20'000, 100));
  file = File();
  EXPECT_EQ(world.system.bytes_of("/f"), std::vector<std::byte>(8000, std::byte{9}));
}

TEST(OpenFile, AFileThatHasAnotherNameNowIsCutAndNobodyElsesRemoved) {
  World world;
  File file = open_sim(world.system, "/f", FileMode::update);
  const std::shared_ptr<SimFile> sim = world.system.get("/f");
  sim->bad = {{.begin = 0, .end = 4096}};
  EXPECT_TRUE(write_fails(world, file, 0, 20'000));
  ASSERT_TRUE(world.system.rename("/f", "/moved").has_value());
  world.system.put("/f", pattern(5));
  file = File();
  EXPECT_EQ(world.system.bytes_of("/f"), pattern(5));
  EXPECT_EQ(sim->bytes.size(), 0u) << "a length of unwritten zeros is left";
}

TEST(OpenFile, TheCleanUpIsTheProcesssThatOpened) {
  World world;
  File file = open_sim(world.system, "/f", FileMode::update);
  world.system.get("/f")->bad = {{.begin = 0, .end = 4096}};
  EXPECT_TRUE(write_fails(world, file, 0, 20'000));
  world.system.faults.fail(1000, EIO);
  const int status = run_in_child([&] {
    file = File();
    return static_cast<int>(world.system.faults.operations().size());
  });
  EXPECT_EQ(status, 0) << "a forked child cleaned up its parent's file";
}

TEST(OpenFile, TheDirectDescriptorIsOpenedOnceAndOnlyAtNeed) {
  World world;
  world.system.put("/f", pattern(100'000));
  world.system.faults.fail(1000, EIO);
  const File file = open_sim(world.system, "/f", FileMode::read);
  EXPECT_EQ(world.system.faults.operations(), std::vector<std::string>{"open"});
  std::vector<std::byte> target(50'000);
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(world.handle.read(file, {.target = {target.data(), target.size(), {}}})->result().has_value());
  EXPECT_EQ(world.system.faults.operations(), (std::vector<std::string>{"open", "reopen_direct"}));
  EXPECT_EQ(file.direct_memory_alignment_bytes(), 512u);
  EXPECT_EQ(file.direct_offset_alignment_bytes(), 512u);
}

}  // namespace
}  // namespace headrace::transfer
