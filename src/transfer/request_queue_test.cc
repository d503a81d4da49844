// SPDX-License-Identifier: Apache-2.0
// The queue by itself: levels, turns, cuts, drops.
#include "transfer/request_queue.h"

#include <array>
#include <chrono>

#include <gtest/gtest.h>

#include "tests/support/sim_world.h"
#include "transfer/handle_state.h"
#include "transfer/open_file.h"

namespace headrace::transfer {
namespace {

using namespace headrace::test;

// A queue with blocks of 4 KiB and requests of one file that nobody carries out.
struct Bench {
  SimDisk disk;
  SimFileSystem system{disk};
  std::shared_ptr<OpenFile> file = *OpenFile::open(system, "/f", FileMode::update);
  RequestQueue queue{{.block_bytes = 4096, .staged_block_bytes = 4096}};
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);

  std::shared_ptr<Job> job(uint64_t offset, std::initializer_list<uint64_t> lengths, int priority = 0) {
    auto made = std::make_shared<Job>();
    made->priority = priority;
    made->file = file.get();
    made->direct_wanted = false;
    made->position = offset;
    for (const uint64_t length : lengths) {
      const auto owner = std::make_shared<TransferState>(
          TransferState::Setup{.offset_bytes = offset, .length_bytes = length, .file = file});
      made->parts.push_back({.owner = owner, .begin = offset, .end = offset + length, .data = memory.data()});
      offset += length;
    }
    return made;
  }
  std::vector<QueuedBlock> take(size_t count, uint64_t bytes = UINT64_MAX) {
    std::vector<QueuedBlock> blocks(count);
    blocks.resize(queue.take(blocks, bytes));
    return blocks;
  }
};

TEST(RequestQueue, HigherLevelsGoFirstAndOneLevelTakesTurns) {
  Bench bench;
  const std::array jobs = {
      bench.job(0, {100}, kPriorityMin), bench.job(1000, {100}, 0),  bench.job(2000, {100}, kPriorityMax),
      bench.job(3000, {100}, 0),         bench.job(4200, {100}, 63), bench.job(5000, {100}, 64),
      bench.job(6000, {100}, -1)};
  for (const auto& job : jobs)
    bench.queue.push(job);
  std::vector<uint64_t> order;
  for (const QueuedBlock& block : bench.take(10))
    order.push_back(block.plan.begin);
  EXPECT_EQ(order, (std::vector<uint64_t>{2000, 5000, 4200, 1000, 3000, 6000, 0}));
  EXPECT_TRUE(bench.queue.empty());
}

TEST(RequestQueue, AnUrgentJobComesBetweenTheBlocksOfAnother) {
  Bench bench;
  bench.queue.push(bench.job(0, {40'960}));
  EXPECT_EQ(bench.take(2).size(), 2u);
  bench.queue.push(bench.job(100'000, {10}, 1));
  const std::vector<QueuedBlock> blocks = bench.take(2);
  EXPECT_EQ(blocks[0].plan.begin, 100'000u);
  EXPECT_EQ(blocks[1].plan.begin, 8192u);
}

TEST(RequestQueue, TakesAtLeastOneBlockWhateverTheBytes) {
  Bench bench;
  bench.queue.push(bench.job(0, {40'960}));
  EXPECT_EQ(bench.take(10, 1).size(), 1u);
  EXPECT_EQ(bench.take(10, 4097).size(), 2u);
}

TEST(RequestQueue, ADroppedOwnerLeavesAHoleThatNoBlockCovers) {
  Bench bench;
  const std::shared_ptr<Job> job = bench.job(0, {1000, 1000, 1000});
  bench.queue.push(job);
  uint64_t first = 0;
  EXPECT_EQ(bench.queue.drop(*job, *job->parts[1].owner, first), 1000u);
  EXPECT_EQ(first, 1000u);
  EXPECT_EQ(bench.queue.drop(*job, *job->parts[1].owner, first), 0u) << "once";
  const std::vector<QueuedBlock> blocks = bench.take(10);
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].plan.end, 1000u);
  EXPECT_EQ(blocks[1].plan.begin, 2000u);
  EXPECT_EQ(blocks[1].part, 2u);
}

TEST(RequestQueue, DroppingHalfWayCountsWhatWasNotHandedOut) {
  Bench bench;
  const std::shared_ptr<Job> job = bench.job(0, {10'000});
  bench.queue.push(job);
  EXPECT_EQ(bench.take(1).size(), 1u);
  uint64_t first = 0;
  EXPECT_FALSE(bench.queue.drop_unless_started(*job, *job->parts[0].owner));
  EXPECT_EQ(bench.queue.drop(*job, *job->parts[0].owner, first), 10'000u - 4096u);
  EXPECT_EQ(first, 4096u);
  EXPECT_TRUE(bench.queue.empty());
}

TEST(RequestQueue, AJobDroppedAsAWholeLeavesTheQueue) {
  Bench bench;
  const std::shared_ptr<Job> job = bench.job(0, {1000, 1000});
  bench.queue.push(job);
  EXPECT_TRUE(bench.queue.drop_unless_started(*job, *job->parts[0].owner));
  EXPECT_FALSE(bench.queue.empty());
  EXPECT_EQ(bench.queue.waiting(plan::Direction::read).size(), 1u);
  EXPECT_TRUE(bench.queue.drop_unless_started(*job, *job->parts[1].owner));
  EXPECT_TRUE(bench.queue.empty());
  EXPECT_TRUE(bench.take(1).empty());
}

TEST(RequestQueue, PushFrontGoesAheadOfItsLevelOnly) {
  Bench bench;
  bench.queue.push(bench.job(0, {10}));
  bench.queue.push(bench.job(100, {10}, 5));
  bench.queue.push_front(bench.job(200, {10}));
  std::vector<uint64_t> order;
  for (const QueuedBlock& block : bench.take(10))
    order.push_back(block.plan.begin);
  EXPECT_EQ(order, (std::vector<uint64_t>{100, 200, 0}));
}

TEST(RequestQueue, ManyTouchingRequestsThatAllFailDoNotTakeForEver) {
  World world({}, {.workers = 1});
  world.system.put("/f", {});
  const File file = open_sim(world.system, "/f", FileMode::read);
  constexpr uint64_t kRequests = 40'000;
  std::vector<std::byte> target(kRequests);
  std::vector<ReadItem> items;
  for (uint64_t i = 0; i < kRequests; ++i)
    items.push_back({.file = file, .request = {.offset_bytes = i, .target = {target.data() + i, 1, {}}}});
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Transfer> transfers = *world.handle.read_many(items);
  for (const Transfer& transfer : transfers)
    ASSERT_EQ(transfer.result().error().code, ErrorCode::end_of_file);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace headrace::transfer
