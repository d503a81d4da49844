// SPDX-License-Identifier: Apache-2.0
// The loop against a simulated disk: random mixes of everything, held against a model.
#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/random_load.h"
#include "tests/support/sim_world.h"
#include "transfer/worker_loop.h"

namespace headrace::transfer {
namespace {

using namespace headrace::test;
using engine::Operation;

constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Mix {
  const char* name;
  SimOptions sim;
  HandleOptions handle;
  bool refuses_open = false;
  bool refuses_transfer = false;
  std::optional<uint64_t> resident = {};
};

void PrintTo(const Mix& mix, std::ostream* out) { *out << mix.name; }

constexpr SimChances kRough = {
    .short_transfer = 200, .interrupted = 50, .try_again = 10, .full = 100, .idle_return = 50};
constexpr SimChances kBroken = {.short_transfer = 100,
                                .interrupted = 50,
                                .io_error = 30,
                                .no_space = 10,
                                .cancelled = 10,
                                .full = 100,
                                .idle_return = 50};

const Mix kMixes[] = {
    {.name = "Smooth", .sim = {}, .handle = {.workers = 1}},
    {.name = "Rough", .sim = {.chances = kRough}, .handle = {.workers = 1, .block_bytes = 16 << 10}},
    {.name = "RoughDepthOne",
     .sim = {.chances = kRough, .depth_max = 1},
     .handle = {.workers = 1, .block_bytes = 64 << 10}},
    {.name = "RoughDepthTwoSmallestBlocks",
     .sim = {.chances = kRough},
     .handle = {.workers = 2, .block_bytes = 4096, .queue_depth = 2}},
    {.name = "RoughOddBlocks",
     .sim = {.chances = kRough},
     .handle = {.workers = 3, .block_bytes = 12 << 10, .queue_depth = 3}},
    {.name = "RoughLittleStaging",
     .sim = {.chances = kRough},
     .handle = {.workers = 2, .block_bytes = 256 << 10, .staging_bytes = 16 << 10}},
    {.name = "RoughRegistered",
     .sim = {.chances = kRough, .memory_slots = 3},
     .handle = {.workers = 2, .block_bytes = 32 << 10}},
    {.name = "RoughRegistrationLimited",
     .sim = {.chances = kRough, .memory_slots = 16, .registrations_max = 5},
     .handle = {.workers = 2, .block_bytes = 32 << 10}},
    {.name = "RoughFineAlignment",
     .sim = {.chances = kRough, .direct_memory_bytes = 4, .direct_offset_bytes = 512},
     .handle = {.workers = 2, .block_bytes = 32 << 10}},
    {.name = "RoughCoarseAlignment",
     .sim = {.chances = kRough, .direct_memory_bytes = 16384, .direct_offset_bytes = 16384},
     .handle = {.workers = 2, .block_bytes = 64 << 10}},
    {.name = "RoughGranuleAboveBlock",
     .sim = {.chances = kRough, .direct_memory_bytes = 16384, .direct_offset_bytes = 16384},
     .handle = {.workers = 2, .block_bytes = 8 << 10}},
    {.name = "RoughDirectRefusedAtOpen",
     .sim = {.chances = kRough},
     .handle = {.workers = 2, .block_bytes = 32 << 10},
     .refuses_open = true},
    {.name = "RoughDirectRefusedAtTransfer",
     .sim = {.chances = kRough, .memory_slots = 8},
     .handle = {.workers = 2, .block_bytes = 32 << 10},
     .refuses_transfer = true},
    {.name = "RoughDirectNever",
     .sim = {.chances = kRough},
     .handle = {.workers = 2, .block_bytes = 32 << 10, .direct = Ladder::never}},
    {.name = "RoughCached",
     .sim = {.chances = kRough},
     .handle = {.workers = 2, .block_bytes = 32 << 10},
     .resident = 1 << 30},
    {.name = "RoughFewRequests",
     .sim = {.chances = kRough},
     .handle = {.workers = 2, .block_bytes = 32 << 10, .requests_max = 3}},
    {.name = "Broken", .sim = {.chances = kBroken}, .handle = {.workers = 1, .block_bytes = 16 << 10}},
    {.name = "BrokenWorkers",
     .sim = {.chances = kBroken, .memory_slots = 4},
     .handle = {.workers = 4, .block_bytes = 32 << 10, .queue_depth = 4}},
};

class WorkerLoopMix : public testing::TestWithParam<Mix> {};

TEST_P(WorkerLoopMix, EveryByteOfRandomRequestsIsAccountedFor) {
  const Mix& mix = GetParam();
#if defined(HEADRACE_SANITIZED)
  constexpr uint64_t kSeeds = 4;
#else
  constexpr uint64_t kSeeds = 12;
#endif
  constexpr uint64_t kFileBytes = kMiB + 333;
  RandomLoadCounts sum;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SimOptions sim = mix.sim;
    sim.seed = seed;
    World world(sim, mix.handle);
    ASSERT_TRUE(world.handle.is_open());
    world.system.refuses_direct_open = mix.refuses_open;
    world.system.resident = mix.resident;
    world.system.put("/read", pattern(kFileBytes))->refuses_direct_transfers = mix.refuses_transfer;
    std::vector<std::byte> old(2 * kMiB);
    std::mt19937_64 random(seed);
    for (std::byte& byte : old)
      byte = static_cast<std::byte>(random());
    const std::shared_ptr<SimFile> written = world.system.put("/write", old);
    written->refuses_direct_transfers = mix.refuses_transfer;
    RandomLoad load(world.handle, {.seed = seed,
                                   .read_file = open_sim(world.system, "/read", FileMode::read),
                                   .read_file_bytes = kFileBytes,
                                   .write_file = open_sim(world.system, "/write", FileMode::update),
                                   .span_begin = 1234,
                                   .span_bytes = 2 * kMiB - 5678,
                                   .read_back =
                                       [&](uint64_t offset, uint64_t length) {
                                         const std::lock_guard lock(world.disk.mutex());
                                         return std::vector<std::byte>(
                                             written->bytes.begin() + static_cast<std::ptrdiff_t>(offset),
                                             written->bytes.begin() + static_cast<std::ptrdiff_t>(offset + length));
                                       },
                                   .hold =
                                       [&] {
                                         if (mix.handle.requests_max > 100) world.disk.hold();
                                       },
                                   .release = [&] { world.disk.release(); },
                                   .may_fail =
                                       [&](const Error& error) {
                                         for (const SimDisk::Fault& fault : world.disk.faults()) {
                                           const bool sync = fault.io.block.operation == Operation::datasync;
                                           const uint64_t begin = fault.io.block.offset_bytes;
                                           const uint64_t end = begin + fault.io.block.length_bytes;
                                           const bool meets = begin < error.offset_bytes + error.length_bytes &&
                                                              error.offset_bytes < end;
                                           if (fault.errno_value == error.errno_value && (meets || sync)) return true;
                                         }
                                         return false;
                                       }});
    for (int batch = 0; batch < 6; ++batch)
      ASSERT_EQ(load.run_batch(), std::vector<std::string>()) << mix.name << ", batch " << batch;
    const HandleStats stats = world.handle.stats();
    EXPECT_EQ(stats.unfinished_requests, 0u);
    EXPECT_EQ(stats.reads.requests + stats.writes.requests, load.counts().requests);
    EXPECT_EQ(written->bytes.size(), 2 * kMiB);
    EXPECT_TRUE(std::equal(old.begin(), old.begin() + 1234, written->bytes.begin()))
        << "bytes before the span were touched";
    EXPECT_TRUE(std::equal(old.end() - 4444, old.end(), written->bytes.end() - 4444))
        << "bytes behind the span were touched";
    (void)world.handle.close();
    EXPECT_EQ(world.disk.registered_now(), 0u);
    sum.requests += load.counts().requests;
    sum.bytes += load.counts().bytes;
    sum.failed += load.counts().failed;
    sum.cancelled += load.counts().cancelled;
    sum.aborted += load.counts().aborted;
    sum.ended += load.counts().ended;
  }
  EXPECT_GT(sum.bytes, kMiB);
  // Where the device holds one block, what is cancelled while the disk is held was not sent yet, but for one request.
  // Elsewhere it is chance whether a cancel comes in time.
  if (mix.sim.depth_max == 1) {
    EXPECT_GT(sum.cancelled, 0u);
    EXPECT_GT(sum.aborted, 0u);
  }
  EXPECT_GT(sum.ended, 0u);
}

INSTANTIATE_TEST_SUITE_P(Mixes, WorkerLoopMix, testing::ValuesIn(kMixes),
                         [](const auto& mix) { return std::string(mix.param.name); });

}  // namespace
}  // namespace headrace::transfer
