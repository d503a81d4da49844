// SPDX-License-Identifier: Apache-2.0
// Ends of requests and handles on a simulated disk: cancel, abort, closing, devices that do not answer.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/sim_world.h"
#include "transfer/handle_state.h"

namespace headrace::transfer {
namespace {

using namespace headrace::test;
using std::chrono::milliseconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// --- cancel and abort ---

TEST(HandleState, CancelWorksOnlyBeforeAnythingWasSent) {
  World world({}, {.workers = 1, .block_bytes = 4096, .queue_depth = 1});
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> a(100'000);
  std::vector<std::byte> b(100'000);
  world.disk.hold();
  Transfer first = *world.handle.read(file, into(a));
  ASSERT_TRUE(world.disk.wait_for_taken(1));
  Transfer second = *world.handle.read(file, into(b));
  EXPECT_TRUE(first.running());
  EXPECT_FALSE(second.running());
  EXPECT_FALSE(first.cancel());
  EXPECT_TRUE(second.cancel());
  EXPECT_TRUE(second.done());
  EXPECT_TRUE(second.cancelled());
  EXPECT_TRUE(second.cancel()) << "again";
  EXPECT_EQ(second.result().error().code, ErrorCode::cancelled);
  EXPECT_EQ(second.result().error().path, "/f");
  world.disk.release();
  EXPECT_EQ(first.result().value(), a.size());
  EXPECT_FALSE(first.cancelled());
  EXPECT_FALSE(first.cancel()) << "done";
  EXPECT_EQ(std::count(b.begin(), b.end(), std::byte{0}), 100'000);
}

TEST(HandleState, AbortStopsTheBlocksNotYetSent) {
  World world({}, {.workers = 1, .block_bytes = 4096, .queue_depth = 2});
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(kMiB);
  world.disk.hold();
  Transfer transfer = *world.handle.read(file, into(target));
  ASSERT_TRUE(world.disk.wait_for_taken(2));
  transfer.abort();
  transfer.abort();
  EXPECT_FALSE(transfer.done()) << "the kernel still holds two blocks";
  world.disk.release();
  const Result<uint64_t> result = transfer.result();
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::aborted);
  EXPECT_EQ(result.error().transferred_bytes, 8192u);
  EXPECT_TRUE(holds_pattern(target.data(), 8192, 0));
  EXPECT_EQ(world.disk.taken().size(), 2u);
}

TEST(HandleState, AbortOfOneNeighbourSparesTheOthers) {
  World world({}, {.workers = 1, .block_bytes = 4096, .queue_depth = 1});
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(30 << 10);
  std::vector<ReadItem> items;
  for (uint64_t i = 0; i < 30; ++i)
    items.push_back(
        {.file = file, .request = {.offset_bytes = i << 10, .target = {target.data() + (i << 10), 1024, {}}}});
  world.disk.hold();
  std::vector<Transfer> transfers = *world.handle.read_many(items);
  ASSERT_TRUE(world.disk.wait_for_taken(1));
  EXPECT_TRUE(transfers[10].cancel());
  transfers[20].abort();
  EXPECT_TRUE(transfers[20].done());
  world.disk.release();
  for (uint64_t i = 0; i < 30; ++i) {
    const bool stopped = i == 10 || i == 20;
    EXPECT_EQ(transfers[i].result().has_value(), !stopped) << i;
    EXPECT_EQ(holds_pattern(target.data() + (i << 10), 1024, i << 10), !stopped) << i;
  }
}

TEST(HandleState, CancelAfterAbortSaysNo) {
  World world({}, {.workers = 1, .queue_depth = 1});
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(30 << 10);
  world.disk.hold();
  const Transfer busy = *world.handle.read(file, {.target = {target.data(), 1000, {}}});
  ASSERT_TRUE(world.disk.wait_for_taken(1));
  std::vector<ReadItem> items;
  for (uint64_t i = 0; i < 3; ++i)
    items.push_back(
        {.file = file, .request = {.offset_bytes = i << 10, .target = {target.data() + (i << 10), 1024, {}}}});
  std::vector<Transfer> transfers = *world.handle.read_many(items);
  transfers[1].abort();
  EXPECT_FALSE(transfers[1].cancel());
  EXPECT_FALSE(transfers[1].cancelled());
  EXPECT_EQ(transfers[1].result().error().code, ErrorCode::aborted);
  world.disk.release();
  EXPECT_EQ(transfers[2].result().value(), 1024u);
}

TEST(HandleState, APieceOfAFailedBlockIsNotSentAgainAfterItsAbort) {
  World world;
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(3072);
  std::vector<ReadItem> items;
  for (uint64_t i = 0; i < 3; ++i)
    items.push_back(
        {.file = file, .request = {.offset_bytes = i << 10, .target = {target.data() + (i << 10), 1024, {}}}});
  world.disk.set_script([first = true](const SimIo&) mutable -> std::optional<int64_t> {
    return std::exchange(first, false) ? std::optional<int64_t>(-EIO) : std::nullopt;
  });
  world.disk.hold();
  std::vector<Transfer> transfers = *world.handle.read_many(items);
  ASSERT_TRUE(world.disk.wait_for_taken(1));
  transfers[1].abort();
  EXPECT_FALSE(transfers[1].done());
  world.disk.release();
  EXPECT_EQ(transfers[0].result().value(), 1024u);
  EXPECT_EQ(transfers[1].result().error().code, ErrorCode::aborted);
  EXPECT_EQ(transfers[2].result().value(), 1024u);
  EXPECT_EQ(world.disk.taken().size(), 3u);  // all three at once, then the first and the last
}

TEST(HandleState, AnAbortedWriteIsNotHeldAgainstTheClose) {
  World world({}, {.workers = 1, .block_bytes = 4096, .queue_depth = 1});
  const File file = open_sim(world.system, "/f", FileMode::update);
  const std::vector<std::byte> source(100'000);
  world.disk.hold();
  Transfer transfer = *world.handle.write(file, from(source));
  ASSERT_TRUE(world.disk.wait_for_taken(1));
  transfer.abort();
  world.disk.release();
  EXPECT_TRUE(world.handle.close().has_value());
}

// --- closing, and devices that do not answer ---

TEST(HandleState, AWriteThatFailedUncollectedRaisesAtClose) {
  World world;
  const File file = open_sim(world.system, "/f", FileMode::update);
  world.system.get("/f")->capacity = 0;
  const std::vector<std::byte> source(1000);
  {
    const Transfer collected = *world.handle.write(file, from(source));
    EXPECT_FALSE(collected.result().has_value());
    const Transfer dropped = *world.handle.write(file, from(source, 77));
  }
  const Status closed = world.handle.close();
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().errno_value, ENOSPC);
  EXPECT_EQ(closed.error().offset_bytes, 77u);
  EXPECT_TRUE(world.handle.close().has_value()) << "said once";
}

TEST(HandleState, AReadThatFailedUncollectedDoesNot) {
  World world;
  const File file = open_sim(world.system, "/f", FileMode::update);
  std::vector<std::byte> target(100);
  (void)world.handle.read(file, into(target));
  EXPECT_TRUE(world.handle.close().has_value());
}

TEST(HandleState, AClosedHandleTakesNoMoreRequests) {
  World world;
  world.system.put("/f", pattern(4096));
  const File file = open_sim(world.system, "/f", FileMode::read);
  EXPECT_TRUE(world.handle.is_open());
  EXPECT_TRUE(world.handle.close().has_value());
  EXPECT_FALSE(world.handle.is_open());
  std::vector<std::byte> target(100);
  EXPECT_EQ(world.handle.read(file, into(target)).error().code, ErrorCode::closed);
  EXPECT_EQ(world.handle.replace("/g", from(target)).error().code, ErrorCode::closed);
}

TEST(HandleState, AStuckDeviceTimesTheCloseOutAndKeepsTheMemory) {
  World world;
  world.system.put("/f", pattern(kMiB));
  File file = open_sim(world.system, "/f", FileMode::update);
  world.disk.set_stuck([](const SimIo& io) { return io.block.offset_bytes < kMiB / 2; });
  Transfer transfer;
  const std::byte* address = nullptr;
  {
    const Buffer buffer = buffer_of(kMiB);
    address = buffer.data();
    transfer = *world.handle.read(file, {.target = buffer.region()});
  }
  file = File();
  ASSERT_TRUE(world.disk.wait_for_taken(1));
  EXPECT_EQ(transfer.result_for(milliseconds(1)).error().code, ErrorCode::timed_out);
  EXPECT_EQ(world.handle.close(milliseconds(1)).error().code, ErrorCode::timed_out);
  unsigned char resident = 0;
  const auto page = reinterpret_cast<uintptr_t>(address) & ~uintptr_t{4095};
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(page), 4096, &resident), 0) << "the buffer was unmapped under the device";
  EXPECT_FALSE(transfer.done());
  world.disk.set_stuck({});
  EXPECT_EQ(transfer.result().value(), kMiB);
  EXPECT_TRUE(world.handle.close().has_value());
}

TEST(HandleState, WorkersLeftToThemselvesFinishWhenTheDeviceAnswers) {
  SimDisk disk;
  SimFileSystem system(disk);
  const std::array candidates = {EngineCandidate{.kind = EngineKind::posix, .factory = disk.factory()}};
  std::shared_ptr<HandleState> state = *HandleState::create({.workers = 2}, candidates);
  std::weak_ptr<HandleState> alive = state;
  const File file = open_sim(system, "/f", FileMode::update);
  disk.hold();
  Transfer transfer;
  std::weak_ptr<memory::BufferStorage> storage;
  {
    const Buffer buffer = buffer_of(kMiB, std::byte{7});
    storage = memory::find_buffer(buffer.data(), 1);
    const WriteItem item = {.file = file, .request = {.source = {buffer.data(), kMiB, {}}}};
    transfer = (*state->write_many({&item, 1}))[0];
  }
  EXPECT_FALSE(state->close(HandleState::Clock::now()).has_value());
  state->detach();
  state.reset();
  EXPECT_FALSE(storage.expired());
  disk.release();
  EXPECT_EQ(transfer.result().value(), kMiB);
  EXPECT_TRUE(storage.expired());
  while (!alive.expired())
    std::this_thread::yield();
}

TEST(HandleState, ADroppedHandleAbortsReadsAndFinishesWrites) {
  SimDisk disk;
  SimFileSystem system(disk);
  system.put("/in", pattern(kMiB));
  const File in = open_sim(system, "/in", FileMode::read);
  const File out = open_sim(system, "/out", FileMode::update);
  const std::vector<std::byte> source = pattern(kMiB);
  std::vector<std::byte> target(kMiB);
  Transfer read;
  Transfer write;
  {
    Handle handle = make_sim_handle(disk, {.workers = 1, .block_bytes = 4096, .queue_depth = 2});
    disk.hold();
    read = *handle.read(in, into(target));
    ASSERT_TRUE(disk.wait_for_taken(2));
    write = *handle.write(out, from(source));
    disk.release();
  }
  EXPECT_TRUE(read.done());
  EXPECT_EQ(write.result().value(), kMiB);
  EXPECT_EQ(system.bytes_of("/out"), source);
}

TEST(HandleState, SubmittingWhileAnotherThreadClosesIsSafe) {
  for (int round = 0; round < 200; ++round) {
    World world({.seed = static_cast<uint64_t>(round)}, {.workers = 3});
    world.system.put("/f", pattern(64 << 10));
    const File file = open_sim(world.system, "/f", FileMode::read);
    std::vector<std::thread> threads;
    std::array<std::vector<std::byte>, 3> targets;
    for (std::vector<std::byte>& target : targets) {
      target.resize(4096);
      threads.emplace_back([&] {
        while (true) {
          const Result<Transfer> transfer = world.handle.read(file, into(target));
          if (!transfer) break;
          EXPECT_TRUE(transfer->result().has_value());
        }
      });
    }
    (void)world.disk.wait_for_taken(static_cast<size_t>(round) % 7);
    EXPECT_TRUE(world.handle.close().has_value());
    for (std::thread& thread : threads)
      thread.join();
  }
}

}  // namespace
}  // namespace headrace::transfer
