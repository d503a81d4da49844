// SPDX-License-Identifier: Apache-2.0
// The loop against a simulated disk: retries, short transfers, errors, the end of a file, order.
#include "transfer/worker_loop.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/sim_world.h"

namespace headrace::transfer {
namespace {

using namespace headrace::test;

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// --- retries ---

TEST(WorkerLoop, InterruptedBlocksAreSentAgainUntilTheBound) {
  World world;
  world.system.put("/f", pattern(10'000));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(10'000);
  world.disk.set_script([left = 900](const SimIo&) mutable -> std::optional<int64_t> {
    return left-- > 0 ? std::optional<int64_t>(-EINTR) : std::nullopt;
  });
  EXPECT_EQ(world.handle.read(file, {.target = {target.data(), target.size(), {}}})->result().value(), 10'000u);
  EXPECT_TRUE(holds_pattern(target.data(), target.size(), 0));
  world.disk.set_script([](const SimIo&) -> std::optional<int64_t> { return -EINTR; });
  const Result<uint64_t> failed = world.handle.read(file, {.target = {target.data(), target.size(), {}}})->result();
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().errno_value, EINTR);
}

TEST(WorkerLoop, TryAgainIsTriedAgainUntilTheBound) {
  World world;
  world.system.put("/f", pattern(10'000));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(10'000);
  const auto count = std::make_shared<int>(0);
  world.disk.set_script([count](const SimIo&) -> std::optional<int64_t> {
    return ++*count <= 20 ? std::optional<int64_t>(-EAGAIN) : std::nullopt;
  });
  EXPECT_EQ(world.handle.read(file, {.target = {target.data(), target.size(), {}}})->result().value(), 10'000u);
  world.disk.set_script([](const SimIo&) -> std::optional<int64_t> { return -EAGAIN; });
  const Result<uint64_t> failed = world.handle.read(file, {.target = {target.data(), target.size(), {}}})->result();
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().errno_value, EAGAIN);
}

TEST(WorkerLoop, OneBlockThatIsTriedAgainDoesNotStopTheOthers) {
  World world;
  world.system.put("/stubborn", pattern(4096));
  world.system.put("/f", pattern(4096));
  const File stubborn = open_sim(world.system, "/stubborn", FileMode::read);
  const File file = open_sim(world.system, "/f", FileMode::read);
  const auto refusing = std::make_shared<std::atomic<bool>>(true);
  world.disk.set_script([refusing](const SimIo& io) -> std::optional<int64_t> {
    return *refusing && io.file->name == "/stubborn" ? std::optional<int64_t>(-EAGAIN) : std::nullopt;
  });
  std::vector<std::byte> a(4096);
  std::vector<std::byte> b(4096);
  const Transfer slow = *world.handle.read(stubborn, {.target = {a.data(), a.size(), {}}});
  ASSERT_TRUE(world.disk.wait_for_taken(3));
  const Result<uint64_t> quick =
      world.handle.read(file, {.target = {b.data(), b.size(), {}}})->result_for(std::chrono::seconds(60));
  EXPECT_EQ(quick.value(), 4096u);
  EXPECT_FALSE(slow.done()) << "the others had to wait for it";
  *refusing = false;
  EXPECT_EQ(slow.result().value(), 4096u);
}

TEST(WorkerLoop, AWriteThatMovesNothingForEverFails) {
  World world;
  const File file = open_sim(world.system, "/f", FileMode::update);
  world.disk.set_script([](const SimIo&) -> std::optional<int64_t> { return 0; });
  std::vector<std::byte> source(10'000);
  const Result<uint64_t> failed = world.handle.write(file, {.source = {source.data(), source.size(), {}}})->result();
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().errno_value, EIO);
  EXPECT_EQ(failed.error().transferred_bytes, 0u);
}

TEST(WorkerLoop, ShortTransfersOfOneByteAreContinuedToTheEnd) {
  World world;
  world.system.put("/f", pattern(9'000));
  const File file = open_sim(world.system, "/f", FileMode::read);
  world.disk.set_script([](const SimIo&) -> std::optional<int64_t> { return 1; });
  std::vector<std::byte> target(9'000);
  EXPECT_EQ(world.handle.read(file, {.target = {target.data(), target.size(), {}}})->result().value(), 9'000u);
  EXPECT_TRUE(holds_pattern(target.data(), target.size(), 0));
  const File out = open_sim(world.system, "/out", FileMode::update);
  EXPECT_EQ(
      world.handle.write(out, {.offset_bytes = 77, .source = {target.data(), target.size(), {}}})->result().value(),
      9'000u);
  const std::vector<std::byte> written = world.system.bytes_of("/out");
  ASSERT_EQ(written.size(), 9'077u);
  EXPECT_TRUE(holds_pattern(written.data() + 77, 9'000, 0));
}

TEST(WorkerLoop, AFullEngineIsOfferedTheRestAgain) {
  World world({.chances = {.full = 900}, .depth_max = 2}, {.workers = 1, .block_bytes = 4096});
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(kMiB);
  EXPECT_EQ(world.handle.read(file, {.target = {target.data(), target.size(), {}}})->result().value(), kMiB);
  EXPECT_TRUE(holds_pattern(target.data(), target.size(), 0));
}

TEST(WorkerLoop, AnEngineThatTakesNothingFailsTheRequestsInTheEnd) {
  World world;
  world.system.put("/f", pattern(10'000));
  const File file = open_sim(world.system, "/f", FileMode::update);
  std::vector<std::byte> target(10'000);
  world.disk.set_room(SimDisk::Room::none);
  const Transfer read = *world.handle.read(file, {.target = {target.data(), target.size(), {}}});
  const Transfer write =
      *world.handle.write(file, {.source = {target.data(), target.size(), {}}, .durability = Durability::data});
  for (const Transfer& transfer : {read, write}) {
    const Result<uint64_t> failed = transfer.result();
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().errno_value, EAGAIN);
    EXPECT_EQ(failed.error().transferred_bytes, 0u);
  }
  world.disk.set_room(SimDisk::Room::as_usual);
  EXPECT_EQ(world.handle.read(file, {.target = {target.data(), target.size(), {}}})->result().value(), 10'000u);
  EXPECT_TRUE(holds_pattern(target.data(), target.size(), 0));
}

// --- errors ---

TEST(WorkerLoop, ErrorsCarryErrnoPathRangeAndPrefix) {
  for (const int errno_value : {EIO, ENOSPC, EFBIG, ECANCELED, EDQUOT, EROFS}) {
    World world({}, {.workers = 1, .block_bytes = 4096});
    const File file = open_sim(world.system, "/folder/f", FileMode::update);
    world.disk.set_script([errno_value](const SimIo& io) -> std::optional<int64_t> {
      return io.block.offset_bytes >= 40'960 ? std::optional<int64_t>(-errno_value) : std::nullopt;
    });
    std::vector<std::byte> source(100'000);
    const Result<uint64_t> failed =
        world.handle.write(file, {.offset_bytes = 8192, .source = {source.data(), source.size(), {}}})->result();
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().code, ErrorCode::system);
    EXPECT_EQ(failed.error().errno_value, errno_value);
    EXPECT_EQ(failed.error().path, "/folder/f");
    EXPECT_EQ(failed.error().operation, "write");
    EXPECT_EQ(failed.error().offset_bytes, 8192u);
    EXPECT_EQ(failed.error().length_bytes, 100'000u);
    EXPECT_EQ(failed.error().transferred_bytes, 40'960u - 8192u);
    EXPECT_EQ(world.handle.stats().errors_by_errno.at(errno_value), 1u);
  }
}

TEST(WorkerLoop, TheLowestFailureWinsWhateverTheOrder) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    World world({.seed = seed}, {.workers = 2, .block_bytes = 4096, .queue_depth = 16});
    const std::shared_ptr<SimFile> file = world.system.put("/f", pattern(kMiB));
    file->bad = {{.begin = 200 * kKiB, .end = 204 * kKiB}, {.begin = 600 * kKiB, .end = 700 * kKiB}};
    const File open = open_sim(world.system, "/f", FileMode::read);
    std::vector<std::byte> target(kMiB);
    const Result<uint64_t> failed =
        world.handle.read(open, {.offset_bytes = 1, .target = {target.data(), kMiB - 1, {}}})->result();
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().transferred_bytes, 200u * 1024 - 1);
    EXPECT_TRUE(holds_pattern(target.data(), failed.error().transferred_bytes, 1));
  }
}

TEST(WorkerLoop, ABlockSharedByTransfersFailsForTheOneItConcerns) {
  World world;
  const std::shared_ptr<SimFile> sim = world.system.put("/f", pattern(64 << 10));
  sim->bad = {{.begin = 16 << 10, .end = 20 << 10}};
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(64 << 10);
  std::vector<ReadItem> items;
  for (uint64_t offset = 0; offset < target.size(); offset += 4096) {
    items.push_back({.file = file, .request = {.offset_bytes = offset, .target = {target.data() + offset, 4096, {}}}});
  }
  const std::vector<Transfer> transfers = *world.handle.read_many(items);
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Result<uint64_t> result = transfers[i].result();
    EXPECT_EQ(result.has_value(), i != 4) << i;
    if (result) {
      EXPECT_TRUE(holds_pattern(target.data() + i * 4096, 4096, i * 4096));
    }
  }
}

TEST(WorkerLoop, EndOfFileGivesTheBytesBeforeItToEachTransfer) {
  for (const uint64_t file_bytes : {0u, 1u, 511u, 4096u, 5000u, 70'000u}) {
    for (const uint64_t offset : {0u, 1u, 4096u, 80'000u}) {
      World world({}, {.workers = 1, .block_bytes = 8192});
      world.system.put("/f", pattern(file_bytes));
      const File file = open_sim(world.system, "/f", FileMode::read);
      const uint64_t there = offset >= file_bytes ? 0 : file_bytes - offset;
      std::vector<std::byte> target(100'000);
      const Result<uint64_t> failed =
          world.handle.read(file, {.offset_bytes = offset, .target = {target.data(), target.size(), {}}})->result();
      ASSERT_FALSE(failed.has_value());
      EXPECT_EQ(failed.error().code, ErrorCode::end_of_file);
      EXPECT_EQ(failed.error().errno_value, 0);
      EXPECT_EQ(failed.error().transferred_bytes, there);
      const std::string length = fmt::format("the file has {} bytes; ", file_bytes);
      EXPECT_TRUE(failed.error().detail.starts_with(length)) << failed.error().detail;
      EXPECT_NE(failed.error().detail.find("partial=True"), std::string::npos) << failed.error().detail;
      EXPECT_TRUE(holds_pattern(target.data(), there, offset));
      const Result<uint64_t> counted = world.handle
                                           .read(file, {.offset_bytes = offset,
                                                        .target = {target.data(), target.size(), {}},
                                                        .end_of_file = EndOfFile::is_a_count})
                                           ->result();
      EXPECT_EQ(counted.value(), there);
    }
  }
}

TEST(WorkerLoop, AFileCutWhileItIsReadEndsWhereItWasCut) {
  World world({}, {.workers = 1, .block_bytes = 4096, .queue_depth = 1});
  const std::shared_ptr<SimFile> sim = world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  world.disk.set_script([sim](const SimIo& io) -> std::optional<int64_t> {
    if (io.block.offset_bytes >= 100'000) sim->bytes.resize(123'456);
    return std::nullopt;
  });
  std::vector<std::byte> target(kMiB);
  const Result<uint64_t> failed = world.handle.read(file, {.target = {target.data(), target.size(), {}}})->result();
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::end_of_file);
  EXPECT_EQ(failed.error().transferred_bytes, 123'456u);
}

TEST(WorkerLoop, AFullDiskFailsTheWriteAfterWhatFitted) {
  World world;
  const File file = open_sim(world.system, "/f", FileMode::update);
  world.system.get("/f")->capacity = 300'000;
  std::vector<std::byte> source(kMiB);
  const Result<uint64_t> failed =
      world.handle.write(file, {.offset_bytes = 100, .source = {source.data(), source.size(), {}}})->result();
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().errno_value, ENOSPC);
  EXPECT_EQ(failed.error().transferred_bytes, 299'900u);
}

// --- order ---

TEST(WorkerLoop, AnUrgentReadOvertakesTheRestOfALargeOne) {
  World world({}, {.workers = 1, .block_bytes = 4096, .queue_depth = 4});
  world.system.put("/large", pattern(kMiB));
  world.system.put("/urgent", pattern(20'480));
  const File large = open_sim(world.system, "/large", FileMode::read);
  const File urgent = open_sim(world.system, "/urgent", FileMode::read);
  std::vector<std::byte> a(kMiB);
  std::vector<std::byte> b(20'480);
  world.disk.hold();
  const Transfer slow = *world.handle.read(large, {.target = {a.data(), a.size(), {}}, .priority = -1});
  ASSERT_TRUE(world.disk.wait_for_taken(4));
  const Transfer quick = *world.handle.read(urgent, {.target = {b.data(), b.size(), {}}, .priority = 1});
  world.disk.release();
  EXPECT_TRUE(quick.result().has_value());
  EXPECT_TRUE(slow.result().has_value());
  const std::vector<SimIo> taken = world.disk.taken();
  for (size_t i = 0; i < taken.size(); ++i) {
    EXPECT_EQ(taken[i].file->name, i < 4 || i >= 9 ? "/large" : "/urgent") << "block " << i;
  }
}

TEST(WorkerLoop, RequestsOfOnePriorityAreServedInTurn) {
  World world({}, {.workers = 1, .block_bytes = 4096, .queue_depth = 1});
  world.disk.hold();
  std::vector<std::byte> target(40'960);
  std::vector<Transfer> transfers;
  for (int i = 0; i < 10; ++i) {
    const std::string path = fmt::format("/{}", i);
    world.system.put(path, pattern(4096));
    transfers.push_back(*world.handle.read(open_sim(world.system, path, FileMode::read),
                                           {.target = {target.data() + ptrdiff_t{4096} * i, 4096, {}}}));
  }
  world.disk.release();
  for (const Transfer& transfer : transfers)
    EXPECT_TRUE(transfer.result().has_value());
  const std::vector<SimIo> taken = world.disk.taken();
  ASSERT_EQ(taken.size(), 10u);
  for (size_t i = 0; i < 10; ++i)
    EXPECT_EQ(taken[i].file->name, fmt::format("/{}", i));
}

TEST(WorkerLoop, TouchingRequestsOfOneCallShareTheirBlocks) {
  World world;
  const File file = open_sim(world.system, "/f", FileMode::update);
  const std::vector<std::byte> source = pattern(256 << 10);
  std::vector<WriteItem> items;
  for (uint64_t offset = 0; offset < source.size(); offset += 1024)
    items.push_back({.file = file, .request = {.offset_bytes = offset, .source = {source.data() + offset, 1024, {}}}});
  std::shuffle(items.begin(), items.end(), std::mt19937(7));
  const std::vector<Transfer> transfers = *world.handle.write_many(items);
  for (const Transfer& transfer : transfers)
    EXPECT_EQ(transfer.result().value(), 1024u);
  EXPECT_LE(world.disk.taken().size(), 4u);
  EXPECT_EQ(world.system.bytes_of("/f"), source);
}

TEST(WorkerLoop, CopyNeverHoldsBesideANeighbourThatIsCopied) {
  World world;
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(64 << 10);
  const std::array items = {
      ReadItem{.file = file,
               .request = {.offset_bytes = 0, .target = {target.data(), 1000, {}}, .copy = CopyMode::always}},
      ReadItem{.file = file,
               .request = {.offset_bytes = 1000, .target = {target.data() + 1000, 1000, {}}, .copy = CopyMode::never}},
      ReadItem{
          .file = file,
          .request = {.offset_bytes = 2000, .target = {target.data() + 2000, 1000, {}}, .copy = CopyMode::automatic}},
  };
  const std::vector<Transfer> transfers = *world.handle.read_many(items);
  for (const Transfer& transfer : transfers)
    EXPECT_EQ(transfer.result().value(), 1000u);
  EXPECT_EQ(transfers[0].route()->staged_bytes, 1000u);
  EXPECT_EQ(transfers[1].route()->staged_bytes, 0u);
  EXPECT_TRUE(holds_pattern(target.data(), 3000, 0));
}

}  // namespace
}  // namespace headrace::transfer
