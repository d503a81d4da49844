// SPDX-License-Identifier: Apache-2.0
// The loop against a simulated disk: what it does where direct I/O or registered memory is refused.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/sim_world.h"
#include "transfer/memory_slots.h"
#include "transfer/worker_loop.h"

namespace headrace::transfer {
namespace {

using namespace headrace::test;
using engine::Path;

constexpr uint64_t kMiB = uint64_t{1} << 20;

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

}  // namespace
}  // namespace headrace::transfer
