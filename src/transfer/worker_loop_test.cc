// SPDX-License-Identifier: Apache-2.0
// The loop against a simulated disk: retries, short transfers, fall-backs, registration, priorities, and random mixes
// of everything held against a model.
#include "transfer/worker_loop.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/random_load.h"
#include "tests/support/sim_world.h"

namespace headrace::transfer {
namespace {

using namespace headrace::test;
using engine::Operation;
using engine::Path;

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
    file->bad = {{.begin = 200 * 1024, .end = 204 * 1024}, {.begin = 600 * 1024, .end = 700 * 1024}};
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

// --- the ladders ---

TEST(WorkerLoop, DirectRefusedAtOpenGoesBufferedWithOneRecord) {
  Records records;
  World world;
  world.system.refuses_direct_open = true;
  world.system.put("/a", pattern(kMiB));
  world.system.put("/b", pattern(kMiB));
  std::vector<std::byte> target(kMiB);
  for (const char* path : {"/a", "/b", "/a"}) {
    const Transfer transfer = *world.handle.read(open_sim(world.system, path, FileMode::read),
                                                 {.target = {target.data(), target.size(), {}}});
    EXPECT_EQ(transfer.result().value(), kMiB);
    EXPECT_EQ(transfer.route()->direct_bytes, 0u);
    EXPECT_EQ(transfer.route()->buffered_bytes, kMiB);
    EXPECT_NE(transfer.route()->why.find("EINVAL"), std::string::npos) << transfer.route()->why;
    EXPECT_TRUE(holds_pattern(target.data(), kMiB, 0));
  }
  EXPECT_EQ(records.take().size(), 1u);
}

TEST(WorkerLoop, DirectRefusedAtTheFirstTransferGoesBufferedWithOneRecord) {
  for (const bool write : {false, true}) {
    Records records;
    World world;
    world.system.put("/f", pattern(kMiB + 77))->refuses_direct_transfers = true;
    const File file = open_sim(world.system, "/f", FileMode::update);
    const Buffer buffer = buffer_of(kMiB);
    if (write) std::memcpy(buffer.data(), pattern(kMiB).data(), kMiB);
    for (int round = 0; round < 2; ++round) {
      const Transfer transfer =
          write ? *world.handle.write(file, {.offset_bytes = 0, .source = {buffer.data(), kMiB, {}}})
                : *world.handle.read(file, {.offset_bytes = 77, .target = buffer.region()});
      EXPECT_EQ(transfer.result().value(), kMiB);
      EXPECT_EQ(transfer.route()->direct_bytes, 0u);
      EXPECT_EQ(transfer.route()->buffered_bytes, kMiB);
      EXPECT_NE(transfer.route()->why.find("EINVAL"), std::string::npos) << transfer.route()->why;
    }
    EXPECT_TRUE(write ? holds_pattern(world.system.bytes_of("/f").data(), kMiB + 77, 0)
                      : holds_pattern(buffer.data(), kMiB, 77));
    EXPECT_EQ(records.take().size(), 1u);
  }
}

TEST(WorkerLoop, DirectRequiredFailsWhereItIsRefused) {
  World world({}, {.workers = 1, .direct = Ladder::required});
  world.system.put("/f", pattern(kMiB))->refuses_direct_transfers = true;
  const File file = open_sim(world.system, "/f", FileMode::update);
  const Buffer buffer = buffer_of(kMiB);
  EXPECT_EQ(world.handle.read(file, {.target = buffer.region()})->result().error().errno_value, EINVAL);
  world.system.refuses_direct_open = true;
  const Result<Transfer> refused =
      world.handle.read(open_sim(world.system, "/f", FileMode::update), {.target = buffer.region()});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
}

TEST(WorkerLoop, RegistrationRefusedGoesOnWithoutAndSaysSoOnce) {
  Records records;
  World world({.memory_slots = 64, .registrations_max = 1}, {.workers = 1, .block_bytes = 64 << 10});
  world.system.put("/f", pattern(4 * kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  const Buffer first = buffer_of(kMiB);
  const Buffer second = buffer_of(kMiB);
  const Transfer registered = *world.handle.read(file, {.target = first.region()});
  EXPECT_EQ(registered.result().value(), kMiB);
  EXPECT_EQ(registered.route()->registered_bytes, kMiB);
  for (int round = 0; round < 2; ++round) {
    const Transfer plain = *world.handle.read(file, {.offset_bytes = kMiB, .target = second.region()});
    EXPECT_EQ(plain.result().value(), kMiB);
    EXPECT_EQ(plain.route()->registered_bytes, 0u);
    EXPECT_NE(plain.route()->why.find("ulimit -l"), std::string::npos) << plain.route()->why;
  }
  EXPECT_EQ(records.take().size(), 1u);
}

TEST(WorkerLoop, RequiredRegistrationHoldsForEveryBlock) {
  World world({.memory_slots = 8}, {.workers = 1, .registered = Ladder::required});
  world.system.put("/f", pattern(2 * kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  const Buffer buffer = buffer_of(MemorySlots::kStepBytes + kMiB);
  // The middle of this block is where one step of the registration ends and the next one begins.
  const Region across = {buffer.data() + MemorySlots::kStepBytes - kMiB / 2, kMiB, {}};
  for (int round = 0; round < 3; ++round) {
    const Transfer transfer = *world.handle.read(file, {.target = across});
    EXPECT_EQ(transfer.result().value(), kMiB);
    EXPECT_EQ(transfer.route()->registered_bytes, kMiB);
    EXPECT_TRUE(holds_pattern(across.data, kMiB, 0));
  }
  std::vector<std::byte> ordinary(kMiB);
  const Transfer staged = *world.handle.read(file, {.target = {ordinary.data(), ordinary.size(), {}}});
  EXPECT_EQ(staged.result().value(), kMiB);
  EXPECT_EQ(staged.route()->registered_bytes, kMiB);
  const Result<Transfer> impossible =
      world.handle.read(file, {.target = {ordinary.data(), ordinary.size(), {}}, .copy = CopyMode::never});
  ASSERT_FALSE(impossible.has_value());
  EXPECT_EQ(impossible.error().code, ErrorCode::invalid_argument);
}

TEST(WorkerLoop, ABufferThatDiesGivesItsRegistrationBack) {
  World world({.memory_slots = 8}, {.workers = 2});
  world.system.put("/f", pattern(4 * kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  for (int round = 0; round < 100; ++round) {
    const Buffer buffer = buffer_of(kMiB);
    EXPECT_EQ(world.handle.read(file, {.target = buffer.region()})->result().value(), kMiB);
    EXPECT_TRUE(holds_pattern(buffer.data(), kMiB, 0));
  }
  ASSERT_TRUE(world.handle.close().has_value());
  EXPECT_EQ(world.disk.registered_now(), 0u);
}

TEST(WorkerLoop, MoreBuffersThanSlotsTakeTurns) {
  World world({.memory_slots = 2}, {.workers = 1, .block_bytes = 64 << 10});
  world.system.put("/f", pattern(kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 6; ++i)
    buffers.push_back(buffer_of(kMiB));
  for (int round = 0; round < 3; ++round) {
    std::vector<Transfer> transfers;
    for (const Buffer& buffer : buffers)
      transfers.push_back(*world.handle.read(file, {.target = buffer.region()}));
    for (const Transfer& transfer : transfers)
      EXPECT_EQ(transfer.result().value(), kMiB);
  }
  for (const Buffer& buffer : buffers)
    EXPECT_TRUE(holds_pattern(buffer.data(), kMiB, 0));
}

TEST(WorkerLoop, ARegisteredBlockThatIsRefusedIsSentPlain) {
  World world({.memory_slots = 8});
  world.system.put("/f", pattern(kMiB));
  world.disk.set_script([](const SimIo& io) -> std::optional<int64_t> {
    return io.block.memory_slot >= 0 ? std::optional<int64_t>(-EOPNOTSUPP) : std::nullopt;
  });
  const Buffer buffer = buffer_of(kMiB);
  const Transfer transfer =
      *world.handle.read(open_sim(world.system, "/f", FileMode::read), {.target = buffer.region()});
  EXPECT_EQ(transfer.result().value(), kMiB);
  EXPECT_EQ(transfer.route()->registered_bytes, 0u);
  EXPECT_EQ(transfer.route()->direct_bytes, kMiB) << "registration is a ladder of its own";
}

TEST(WorkerLoop, OneRefusedDirectBlockDoesNotCondemnTheFile) {
  World world({}, {.workers = 1, .block_bytes = 64 << 10});
  world.system.put("/f", pattern(2 * kMiB));
  const File file = open_sim(world.system, "/f", FileMode::read);
  const Buffer buffer = buffer_of(kMiB);
  EXPECT_EQ(world.handle.read(file, {.target = buffer.region()})->result().value(), kMiB);
  world.disk.set_script([](const SimIo& io) -> std::optional<int64_t> {
    return io.block.path == Path::direct && io.block.offset_bytes == kMiB + (128 << 10)
               ? std::optional<int64_t>(-EINVAL)
               : std::nullopt;
  });
  const Transfer transfer = *world.handle.read(file, {.offset_bytes = kMiB, .target = buffer.region()});
  EXPECT_EQ(transfer.result().value(), kMiB);
  EXPECT_EQ(transfer.route()->buffered_bytes, 64u << 10);
  EXPECT_NE(transfer.route()->why, "buffered: ");
  EXPECT_TRUE(holds_pattern(buffer.data(), kMiB, kMiB));
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
                                           {.target = {target.data() + 4096 * i, 4096, {}}}));
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

// --- everything at once ---

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
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
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
