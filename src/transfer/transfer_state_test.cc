// SPDX-License-Identifier: Apache-2.0
// Waiting, callbacks, owners kept alive, and what a forked child sees of its parent's transfers.
#include "transfer/transfer_state.h"

#include <pthread.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/sim_world.h"

namespace headrace::transfer {
namespace {

using namespace headrace::test;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A read that is in the engine and stays there until the disk is released.
struct Held {
  Held() {
    world.system.put("/f", pattern(1 << 20));
    file = open_sim(world.system, "/f", FileMode::read);
    world.disk.hold();
    transfer = *world.handle.read(file, {.target = {target.data(), target.size(), {}}});
    EXPECT_TRUE(world.disk.wait_for_taken(1));
  }
  World world{{}, {.workers = 1}};
  File file;
  std::vector<std::byte> target = std::vector<std::byte>(1 << 16);
  Transfer transfer;
};

// Callbacks are handed to the dispatcher just after the transfer is seen done.
template <class Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  while (!condition() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  return condition();
}

TEST(Transfer, ADefaultTransferIsNothing) {
  Transfer none;
  EXPECT_FALSE(none.done());
  EXPECT_FALSE(none.running());
  EXPECT_FALSE(none.cancel());
  EXPECT_FALSE(none.wait_for(seconds(0)));
  EXPECT_EQ(none.result().error().code, ErrorCode::closed);
  EXPECT_FALSE(none.route().has_value());
}

TEST(Transfer, WaitForEndsWithTheTimeAndNotBefore) {
  Held held;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(held.transfer.wait_for(milliseconds(30)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(30));
  EXPECT_FALSE(held.transfer.route().has_value());
  held.world.disk.release();
  EXPECT_TRUE(held.transfer.wait_for(seconds(60)));
  EXPECT_TRUE(held.transfer.wait_for(seconds(0)));
  EXPECT_TRUE(held.transfer.route().has_value());
}

TEST(Transfer, WaitForIsNotEndedByTheTransferGettingStarted) {
  World world({}, {.workers = 1});
  world.system.put("/f", pattern(4096));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(4096);
  for (int round = 0; round < 3'000; ++round) {
    const Transfer transfer = *world.handle.read(file, {.target = {target.data(), target.size(), {}}});
    ASSERT_TRUE(transfer.wait_for(seconds(60))) << "came back without a signal, round " << round;
  }
}

TEST(Transfer, ASignalEndsWaitForAndNotResult) {
  Held held;
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  std::atomic<int> returned = 0;
  std::thread waiter([&] {
    EXPECT_FALSE(held.transfer.wait_for(seconds(60)));
    returned = 1;
    EXPECT_TRUE(held.transfer.result().has_value());
    returned = 2;
  });
  while (returned == 0) {
    ::pthread_kill(waiter.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  for (int i = 0; i < 100; ++i) {
    ::pthread_kill(waiter.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  EXPECT_EQ(returned, 1);
  held.world.disk.release();
  waiter.join();
}

TEST(Transfer, HugeAndNegativeTimeoutsWaitForEver) {
  Held held;
  std::thread releaser([&] { held.world.disk.release(); });
  EXPECT_TRUE(held.transfer.result_for(Transfer::Nanoseconds::max()).has_value());
  EXPECT_TRUE(held.transfer.result_for(seconds(-1)).has_value());
  releaser.join();
}

TEST(Transfer, CallbacksRunOnceOnTheDispatcherWhetherDoneOrNot) {
  Held held;
  std::atomic<int> calls = 0;
  std::thread::id where;
  held.transfer.on_done([&](const Transfer& transfer) {
    EXPECT_TRUE(transfer.done());
    where = std::this_thread::get_id();
    ++calls;
  });
  EXPECT_EQ(calls, 0);
  held.world.disk.release();
  EXPECT_TRUE(held.transfer.result().has_value());
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  held.transfer.on_done([&](const Transfer&) {
    EXPECT_EQ(where, std::this_thread::get_id());
    ++calls;
  });
  flush_dispatcher();
  EXPECT_EQ(calls, 2);
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST(Transfer, FlushReturnsAlsoWhenCallbacksBreedCallbacks) {
  World world;
  world.system.put("/f", pattern(10));
  std::vector<std::byte> target(10);
  const Transfer transfer =
      *world.handle.read(open_sim(world.system, "/f", FileMode::read), {.target = {target.data(), 10, {}}});
  EXPECT_TRUE(transfer.result().has_value());
  const auto running = std::make_shared<std::atomic<bool>>(true);
  const auto breed = std::make_shared<std::function<void(const Transfer&)>>();
  *breed = [running, weak = std::weak_ptr(breed)](const Transfer& done) {
    if (const auto self = weak.lock(); self && *running) done.on_done(*self);
  };
  transfer.on_done(*breed);
  flush_dispatcher();
  *running = false;
  flush_dispatcher();
}

TEST(Transfer, KeepsAnOwnerUntilDoneAndNoLonger) {
  Held held;
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = owner;
  held.transfer.keep_alive(std::move(owner));
  EXPECT_FALSE(alive.expired());
  held.world.disk.release();
  EXPECT_TRUE(held.transfer.result().has_value());
  EXPECT_TRUE(eventually([&] { return alive.expired(); }));
  auto late = std::make_shared<int>(1);
  const std::weak_ptr<int> late_alive = late;
  held.transfer.keep_alive(std::move(late));
  EXPECT_TRUE(late_alive.expired());
}

TEST(Transfer, WaitReturnsAtTheFirstDoneTheFirstErrorOrTheLast) {
  World world({}, {.workers = 1, .queue_depth = 1});
  world.system.put("/f", pattern(3000));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(3000);
  world.disk.hold();
  std::array<Transfer, 3> transfers;
  transfers[0] = *world.handle.read(file, {.target = {target.data(), 1000, {}}});
  transfers[1] =
      *world.handle.read(file, {.offset_bytes = 2500, .target = {target.data(), 1000, {}}});  // meets the end
  transfers[2] = *world.handle.read(file, {.target = {target.data(), 1000, {}}});
  EXPECT_EQ(wait(transfers, WaitFor::any, seconds(0)), 0u);
  EXPECT_EQ(wait(transfers, WaitFor::all, milliseconds(5)), 0u);
  world.disk.let(1);
  EXPECT_EQ(wait(transfers, WaitFor::any, seconds(60)), 1u);
  EXPECT_EQ(wait(transfers, WaitFor::all, milliseconds(5)), 1u);
  world.disk.let(2);
  EXPECT_EQ(wait(transfers, WaitFor::first_error, seconds(60)), 2u);
  world.disk.release();
  EXPECT_EQ(wait(transfers, WaitFor::all, seconds(-1)), 3u);
  EXPECT_EQ(wait({}, WaitFor::all, seconds(-1)), 0u);
  EXPECT_FALSE(transfers[1].internal()->collected());
}

TEST(Transfer, ACancelledOneIsNotTheFirstError) {
  World world({}, {.workers = 1, .queue_depth = 1});
  world.system.put("/f", pattern(3000));
  const File file = open_sim(world.system, "/f", FileMode::read);
  std::vector<std::byte> target(3000);
  world.disk.hold();
  std::array<Transfer, 2> transfers;
  transfers[0] = *world.handle.read(file, {.target = {target.data(), 1000, {}}});
  transfers[1] = *world.handle.read(file, {.offset_bytes = 2000, .target = {target.data(), 1000, {}}});
  ASSERT_TRUE(transfers[1].cancel());
  EXPECT_EQ(wait(transfers, WaitFor::first_error, milliseconds(5)), 1u);
  std::thread releaser([&] { world.disk.release(); });
  EXPECT_EQ(wait(transfers, WaitFor::first_error, seconds(-1)), 2u);
  releaser.join();
}

TEST(Transfer, ManyThreadsMayWaitForOne) {
  Held held;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      if (i % 2 == 0) {
        EXPECT_EQ(held.transfer.result().value(), held.target.size());
      } else {
        EXPECT_EQ(wait({&held.transfer, 1}, WaitFor::all, seconds(60)), 1u);
      }
    });
  }
  held.world.disk.release();
  for (std::thread& thread : threads)
    thread.join();
}

TEST(Transfer, AForkedChildIsToldThatItIsItsParents) {
  Held held;
  const int status = run_in_child([&] {
    if (held.transfer.result().error().code != ErrorCode::closed) return 1;
    if (held.transfer.result_for(seconds(1)).error().code != ErrorCode::closed) return 2;
    if (held.transfer.wait_for(seconds(1))) return 3;
    if (held.transfer.cancel()) return 4;
    held.transfer.abort();
    if (held.world.handle.read(held.file, {}).error().code != ErrorCode::closed) return 5;
    if (held.world.handle.is_open()) return 6;
    if (!held.world.handle.close()) return 7;
    const Handle moved = std::move(held.world.handle);
    return 0;
  });
  EXPECT_EQ(status, 0);
  held.world.disk.release();
  EXPECT_EQ(held.transfer.result().value(), held.target.size());
  EXPECT_TRUE(holds_pattern(held.target.data(), held.target.size(), 0));
}

}  // namespace
}  // namespace headrace::transfer
