// SPDX-License-Identifier: Apache-2.0
// Life of requests and handles on a simulated disk: options, what is refused, limits, durability, counters.
#include "transfer/handle_state.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/sim_world.h"

namespace headrace::transfer {
namespace {

using namespace headrace::test;
using engine::Operation;
using std::chrono::milliseconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// --- options ---

TEST(HandleState, OptionsOutOfRangeAreRefusedByNameValueAndRange) {
  SimDisk disk;
  const std::array candidates = {EngineCandidate{.kind = EngineKind::posix, .factory = disk.factory()}};
  const auto refusal = [&](const HandleOptions& options) {
    const auto made = HandleState::create(options, candidates);
    if (made) (*made)->close(std::nullopt).value();
    return made ? std::string() : made.error().detail;
  };
  const std::string blocks = "; allowed: multiples of 4096 from 4096 to 1073741824";
  EXPECT_EQ(refusal({.workers = 65}), "workers is 65; allowed: 1 to 64");
  EXPECT_EQ(refusal({.workers = 1, .block_bytes = 4095}), "block_bytes is 4095" + blocks);
  EXPECT_EQ(refusal({.workers = 1, .block_bytes = 4097}), "block_bytes is 4097" + blocks);
  EXPECT_EQ(refusal({.workers = 1, .block_bytes = (1 << 30) + 4096}), "block_bytes is 1073745920" + blocks);
  EXPECT_EQ(refusal({.workers = 1, .queue_depth = 4097}), "queue_depth is 4097; allowed: 1 to 4096");
  EXPECT_EQ(refusal({.workers = 2, .staging_bytes = 4096}),
            "staging_bytes is 4096; allowed: 8192 or more with 2 workers");
  EXPECT_EQ(refusal({.workers = 1, .requests_max = 0}), "requests_max is 0; allowed: 1 to 4294967295");
  EXPECT_EQ(refusal({.workers = 2, .staging_bytes = 8192}), "");
}

TEST(HandleState, TheNextEngineIsTakenAndTheFactsSayWhy) {
  Records records;
  SimDisk disk;
  const engine::EngineFactory refusing = [](const engine::EngineOptions&) -> Result<std::unique_ptr<engine::Engine>> {
    return std::unexpected(Error{.errno_value = EPERM, .operation = "io_uring_setup", .detail = "not here"});
  };
  const std::array candidates = {EngineCandidate{.kind = EngineKind::uring, .factory = refusing},
                                 EngineCandidate{.kind = EngineKind::posix, .factory = disk.factory()}};
  const auto state = HandleState::create({.workers = 2}, candidates);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ((*state)->facts().engine, EngineKind::posix);
  EXPECT_NE((*state)->facts().engine_detail.find("EPERM"), std::string::npos) << (*state)->facts().engine_detail;
  EXPECT_EQ(records.take().size(), 1u);
  EXPECT_TRUE((*state)->close(std::nullopt).has_value());
  const auto none = HandleState::create({.workers = 2}, std::span(candidates).first(1));
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().errno_value, EPERM);
}

TEST(HandleState, FewerWorkersThanAskedForStillMoveEverything) {
  Records records;
  SimDisk disk;
  const auto left = std::make_shared<std::atomic<int>>(2);
  const engine::EngineFactory factory =
      [left, make = disk.factory()](const engine::EngineOptions& options) -> Result<std::unique_ptr<engine::Engine>> {
    if (left->fetch_sub(1) <= 0) return std::unexpected(Error{.errno_value = EAGAIN, .operation = "io_setup"});
    return make(options);
  };
  const std::array candidates = {EngineCandidate{.kind = EngineKind::aio, .factory = factory}};
  const auto state = HandleState::create({.workers = 4}, candidates);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ((*state)->facts().workers, 2u);
  EXPECT_EQ(records.take().size(), 1u);
  Handle handle(*state);
  SimFileSystem system(disk);
  system.put("/f", pattern(kMiB));
  std::vector<std::byte> target(kMiB);
  EXPECT_EQ(handle.read(open_sim(system, "/f", FileMode::read), into(target))->result().value(), kMiB);
}

// --- what is refused at once ---

TEST(HandleState, RequestsThatMakeNoSenseAreRefusedAndStartNothing) {
  World world;
  world.system.put("/f", pattern(kMiB));
  const File reading = open_sim(world.system, "/f", FileMode::read);
  const File writing = open_sim(world.system, "/f", FileMode::update);
  std::vector<std::byte> bytes(100);
  const auto code = [](const Result<Transfer>& result) { return result ? ErrorCode::cancelled : result.error().code; };
  EXPECT_EQ(code(world.handle.write(reading, from(bytes))), ErrorCode::system);
  EXPECT_EQ(world.handle.write(reading, from(bytes)).error().errno_value, EBADF);
  EXPECT_EQ(code(world.handle.read(File(), into(bytes))), ErrorCode::closed);
  EXPECT_EQ(code(world.handle.read(writing, {.target = {nullptr, 10, {}}})), ErrorCode::invalid_argument);
  EXPECT_EQ(code(world.handle.read(writing, {.target = {bytes.data(), 100, {DeviceKind::cuda, 0}}})),
            ErrorCode::unavailable);
  EXPECT_EQ(code(world.handle.read(writing, into(bytes, UINT64_MAX))), ErrorCode::invalid_argument);
  EXPECT_EQ(code(world.handle.read(writing, into(bytes, INT64_MAX - 50))), ErrorCode::invalid_argument);
  EXPECT_EQ(code(world.handle.read(writing, {.target = {bytes.data(), 100, {}}, .priority = 128})),
            ErrorCode::invalid_argument);
  // All items are checked before any is started.
  const std::array items = {ReadItem{.file = reading, .request = into(bytes)},
                            ReadItem{.file = File(), .request = into(bytes)}};
  EXPECT_FALSE(world.handle.read_many(items).has_value());
  EXPECT_EQ(world.disk.taken().size(), 0u);
  EXPECT_EQ(world.handle.stats().unfinished_requests, 0u);
}

TEST(HandleState, NothingIsMovedForZeroBytes) {
  World world;
  const File file = open_sim(world.system, "/f", FileMode::update);
  EXPECT_EQ(world.handle.read(file, {})->result().value(), 0u);
  EXPECT_EQ(world.handle.read(file, {.offset_bytes = 1 << 30})->result().value(), 0u);
  EXPECT_EQ(world.handle.write(file, {})->result().value(), 0u);
  EXPECT_TRUE(world.handle.read_many({})->empty());
  EXPECT_TRUE(world.handle.write_many({})->empty());
  EXPECT_EQ(world.disk.taken().size(), 0u);
  EXPECT_EQ(world.system.bytes_of("/f").size(), 0u);
}

TEST(HandleState, ZeroBytesMadeDurableAreSynced) {
  World world;
  const File file = open_sim(world.system, "/f", FileMode::update);
  EXPECT_EQ(world.handle.write(file, {.durability = Durability::data})->result().value(), 0u);
  ASSERT_EQ(world.disk.taken().size(), 1u);
  EXPECT_EQ(world.disk.taken()[0].block.operation, Operation::datasync);
}

// --- limits ---

TEST(HandleState, ALongBulkCallMayBeInterruptedWhileItMakesProgress) {
  std::atomic<int> asked = 0;
  World world({}, {.workers = 1, .requests_max = 1, .interrupted = [&] { return ++asked == 2; }});
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(1000);
  world.handle.internal()->set_interrupt_every(milliseconds(1));
  // Each of them waits for the one before, for less than 1 ms; all of them together take many times that.
  std::vector<ReadItem> items(20'000, {.file = file, .request = {.target = {target.data(), 1000, {}}}});
  const std::vector<Transfer> transfers = *world.handle.read_many(items);
  EXPECT_EQ(transfers.back().result().error().code, ErrorCode::interrupted);
  EXPECT_EQ(transfers.front().result().value(), 1000u);
  EXPECT_EQ(asked, 2);
}

TEST(HandleState, ASubmissionThatWaitsForRoomMayBeInterrupted) {
  std::atomic<bool> interrupt = false;
  World world({}, {.workers = 1, .requests_max = 2, .interrupted = [&] { return interrupt.load(); }});
  world.system.put("/f", pattern(10'000));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(10'000);
  std::vector<ReadItem> items;
  for (uint64_t i = 0; i < 3; ++i)
    items.push_back(
        {.file = file, .request = {.offset_bytes = 2000 * i, .target = {target.data() + 2000 * i, 1000, {}}}});
  world.disk.hold();
  interrupt = true;
  // Two had room: they go on. The third never starts.
  const std::vector<Transfer> transfers = *world.handle.read_many(items);
  ASSERT_EQ(transfers.size(), 3u);
  EXPECT_EQ(transfers[2].result().error().code, ErrorCode::interrupted);
  const Result<Transfer> refused = world.handle.read(file, items[2].request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::interrupted);
  interrupt = false;
  world.disk.release();
  EXPECT_EQ(transfers[0].result().value(), 1000u);
  EXPECT_EQ(transfers[1].result().value(), 1000u);
  EXPECT_EQ(world.handle.read(file, items[2].request)->result().value(), 1000u);
}

TEST(HandleState, BeyondRequestsMaxASubmissionFailsWhenTold) {
  World world({}, {.workers = 1, .requests_max = 2, .when_full = WhenFull::fail});
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(4096);
  world.disk.hold();
  const Transfer a = *world.handle.read(file, into(target));
  const Transfer b = *world.handle.read(file, into(target));
  const Result<Transfer> c = world.handle.read(file, into(target));
  ASSERT_FALSE(c.has_value());
  EXPECT_EQ(c.error().code, ErrorCode::limit_reached);
  world.disk.release();
  EXPECT_TRUE(a.result().has_value());
  EXPECT_TRUE(b.result().has_value());
}

TEST(HandleState, WhoeverHasAResultMaySubmitAnother) {
  World world({}, {.workers = 2, .requests_max = 1, .when_full = WhenFull::fail});
  world.system.put("/f", pattern(4096));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(4096);
  for (int i = 0; i < 5'000; ++i) {
    const Result<Transfer> transfer = world.handle.read(file, into(target));
    ASSERT_TRUE(transfer.has_value()) << "round " << i << ": " << transfer.error().message();
    ASSERT_TRUE(transfer->result().has_value());
  }
}

TEST(HandleState, BeyondRequestsMaxASubmissionWaits) {
  World world({}, {.workers = 1, .requests_max = 3});
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(size_t{100} * 512);
  std::vector<ReadItem> items;
  for (uint64_t i = 0; i < 100; ++i)
    items.push_back(
        {.file = file, .request = {.offset_bytes = i * 1000, .target = {target.data() + i * 512, 512, {}}}});
  const std::vector<Transfer> transfers = *world.handle.read_many(items);
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(transfers[i].result().value(), 512u);
    EXPECT_TRUE(holds_pattern(target.data() + i * 512, 512, i * 1000));
  }
}

TEST(HandleState, MoreDurableWritesOfOneCallThanRequestsMaxAllFinish) {
  World world({}, {.workers = 1, .requests_max = 3});
  const File file = open_sim(world.system, "/f", FileMode::update);
  const std::vector<std::byte> source = pattern(10'000);
  std::vector<WriteItem> items;
  for (uint64_t i = 0; i < 10; ++i)
    items.push_back({.file = file,
                     .request = {.offset_bytes = i * 1000,
                                 .source = {source.data() + i * 1000, 1000, {}},
                                 .durability = Durability::data}});
  std::vector<Transfer> transfers;
  std::thread submitter([&] { transfers = *world.handle.write_many(items); });
  submitter.join();
  for (const Transfer& transfer : transfers)
    EXPECT_EQ(transfer.result().value(), 1000u);
  EXPECT_EQ(world.system.bytes_of("/f"), source);
}

TEST(HandleState, ASubmissionThatWaitsForRoomGivesUpWhenTheHandleCloses) {
  World world({}, {.workers = 1, .requests_max = 2});
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(4096);
  std::vector<ReadItem> items(6, {.file = file, .request = into(target)});
  world.disk.hold();
  std::vector<Transfer> transfers;
  std::thread submitter([&] { transfers = *world.handle.read_many(items); });
  ASSERT_TRUE(world.disk.wait_for_taken(1));
  EXPECT_EQ(world.handle.close(milliseconds(0)).error().code, ErrorCode::timed_out);
  submitter.join();
  world.disk.release();
  EXPECT_TRUE(world.handle.close().has_value());
  ASSERT_EQ(transfers.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(transfers[i].done());
    const Result<uint64_t> result = transfers[i].result();
    EXPECT_TRUE(result.has_value() || result.error().code == ErrorCode::closed) << i;
    EXPECT_EQ(result.has_value(), i < 2) << i;
  }
}

// --- durability ---

TEST(HandleState, DurableWritesOfOneCallShareOneDatasyncAfterTheLast) {
  World world({.seed = 5}, {.workers = 3, .block_bytes = 4096});
  const File a = open_sim(world.system, "/a", FileMode::update);
  const File b = open_sim(world.system, "/b", FileMode::update);
  const std::vector<std::byte> source(20'000);
  std::vector<WriteItem> items;
  for (int i = 0; i < 4; ++i) {
    items.push_back({.file = a, .request = from(source, static_cast<uint64_t>(i) * 30'000, Durability::data)});
    items.push_back({.file = b, .request = from(source, static_cast<uint64_t>(i) * 30'000, Durability::data)});
  }
  const std::vector<Transfer> transfers = *world.handle.write_many(items);
  for (const Transfer& transfer : transfers)
    EXPECT_EQ(transfer.result().value(), 20'000u);
  const std::vector<SimIo> done = world.disk.completed();
  for (const char* name : {"/a", "/b"}) {
    const auto of_file = [&](const SimIo& io) { return io.file->name == name; };
    EXPECT_EQ(std::ranges::count_if(
                  done, [&](const SimIo& io) { return of_file(io) && io.block.operation == Operation::datasync; }),
              1);
    const auto last = std::find_if(done.rbegin(), done.rend(), of_file);
    EXPECT_EQ(last->block.operation, Operation::datasync);
  }
}

TEST(HandleState, AFailedDatasyncFailsEveryDurableWriteOfItsGroup) {
  World world;
  world.disk.set_script([](const SimIo& io) -> std::optional<int64_t> {
    return io.block.operation == Operation::datasync ? std::optional<int64_t>(-EIO) : std::nullopt;
  });
  const File file = open_sim(world.system, "/f", FileMode::update);
  const std::vector<std::byte> source(1000);
  const std::array items = {WriteItem{.file = file, .request = from(source, 0, Durability::data)},
                            WriteItem{.file = file, .request = from(source, 5000, Durability::data)},
                            WriteItem{.file = file, .request = from(source, 9000, Durability::none)}};
  const std::vector<Transfer> transfers = *world.handle.write_many(items);
  for (int i = 0; i < 2; ++i) {
    const Result<uint64_t> result = transfers[static_cast<size_t>(i)].result();
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().errno_value, EIO);
    EXPECT_EQ(result.error().operation, "datasync");
    EXPECT_EQ(result.error().transferred_bytes, 0u) << "none of it is known to be durable";
  }
  EXPECT_TRUE(transfers[2].result().has_value());
}

TEST(HandleState, AFailedOrCancelledMemberDoesNotKeepTheOthersFromBeingSynced) {
  for (const bool cancel : {false, true}) {
    World world({}, {.workers = 1, .block_bytes = 4096, .queue_depth = 1});
    const File file = open_sim(world.system, "/f", FileMode::update);
    world.system.get("/f")->bad = {{.begin = 8192, .end = 12'288}};
    const std::vector<std::byte> source(4096);
    std::vector<WriteItem> items;
    for (uint64_t i = 0; i < 4; ++i)
      items.push_back({.file = file, .request = from(source, i * 4096, Durability::data)});
    world.disk.hold();
    std::vector<Transfer> transfers = *world.handle.write_many(items);
    ASSERT_TRUE(world.disk.wait_for_taken(1));
    if (cancel) {
      transfers[3].abort();
      (void)transfers[2].cancel();
    }
    world.disk.release();
    EXPECT_TRUE(transfers[0].result().has_value());
    EXPECT_TRUE(transfers[1].result().has_value());
    EXPECT_FALSE(transfers[2].result().has_value());
    const std::vector<SimIo> taken = world.disk.taken();
    EXPECT_EQ(std::ranges::count_if(taken, [](const SimIo& io) { return io.block.operation == Operation::datasync; }),
              1);
  }
}

// --- counters ---

TEST(HandleState, StatsCountRequestsBytesAndErrors) {
  World world;
  world.system.put("/f", pattern(10'000));
  const File file = open_sim(world.system, "/f", FileMode::update);
  std::vector<std::byte> bytes(4096);
  EXPECT_TRUE(world.handle.read(file, into(bytes))->result().has_value());
  EXPECT_FALSE(world.handle.read(file, into(bytes, 9'000))->result().has_value());
  EXPECT_TRUE(world.handle.write(file, from(bytes, 1))->result().has_value());
  const HandleStats stats = world.handle.stats();
  EXPECT_EQ(stats.reads.requests, 2u);
  EXPECT_EQ(stats.reads.failed, 1u);
  EXPECT_EQ(stats.reads.bytes, 5096u);
  EXPECT_EQ(stats.writes.requests, 1u);
  EXPECT_EQ(stats.writes.bytes, 4096u);
  EXPECT_EQ(stats.writes.buffered_bytes + stats.writes.direct_bytes, 4096u);
  EXPECT_EQ(stats.errors_by_errno.at(0), 1u);
  EXPECT_GT(stats.reads.latency_ns[4], 0u);
  EXPECT_LE(stats.reads.latency_ns[0], stats.reads.latency_ns[4]);
}

}  // namespace
}  // namespace headrace::transfer
