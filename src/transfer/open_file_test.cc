// SPDX-License-Identifier: Apache-2.0
// What becomes of a file that this library created when writes into it fail.
#include "transfer/open_file.h"

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
