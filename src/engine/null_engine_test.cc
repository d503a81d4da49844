// SPDX-License-Identifier: Apache-2.0
// The null engine keeps the contract of the others but for the bytes.
// One thread, and one that wakes it.
// Owns nothing beyond each test.
#include "engine/null_engine.h"

#include <thread>

#include "tests/support/engine_fixture.h"

namespace headrace::engine {
namespace {

using namespace headrace::test;

std::unique_ptr<Engine> make(uint32_t depth) {
  auto made = make_null_engine({.depth = depth});
  EXPECT_TRUE(made.has_value());
  return *std::move(made);
}

TEST(NullEngine, CompletesEverythingWithItsFullLengthAndTouchesNothing) {
  const auto engine = make(4);
  const Memory memory(4096, 8);
  const std::vector<Block> blocks = {
      {.cookie = 10, .data = memory.data(), .length_bytes = 4096},
      {.cookie = 11, .operation = Operation::write, .data = memory.data(), .length_bytes = 17},
      {.cookie = 12, .operation = Operation::datasync},
      {.cookie = UINT64_MAX, .length_bytes = 1 << 30},
  };
  const Results expected = {{10, 4096}, {11, 17}, {12, 0}, {UINT64_MAX, 1 << 30}};
  EXPECT_EQ(complete(*engine, blocks), expected);
  EXPECT_TRUE(memory.holds(8, 0, 4096, 0));
}

TEST(NullEngine, IsFullAtItsDepthUntilReaped) {
  const auto engine = make(3);
  const std::vector<Block> blocks(5);
  std::array<Completion, 8> done = {};
  EXPECT_EQ(engine->submit(blocks), 3u);
  EXPECT_EQ(engine->submit(blocks), 0u);
  EXPECT_EQ(engine->reap(std::span(done).first(1), std::nullopt), 1u);
  EXPECT_EQ(engine->submit(blocks), 1u);
  EXPECT_EQ(engine->reap(done, std::nullopt), 3u);
}

TEST(NullEngine, SleepsUntilWakeOrDeadline) {
  const auto engine = make(1);
  std::array<Completion, 1> done = {};
  EXPECT_EQ(engine->reap(done, Clock::now() + std::chrono::milliseconds(5)), 0u);
  const std::jthread waker([&] { engine->wake(); });
  EXPECT_EQ(engine->reap(done, std::nullopt), 0u);
}

TEST(NullEngine, RefusesRegistration) {
  const auto engine = make(1);
  std::byte memory[16];
  EXPECT_EQ(engine->caps().memory_slots, 0u);
  EXPECT_LT(engine->register_memory(0, {.data = memory, .bytes = sizeof memory}), 0);
}

}  // namespace
}  // namespace headrace::engine
