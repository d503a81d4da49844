// SPDX-License-Identifier: Apache-2.0
// Tasks run in order, on one thread, also in a forked child.
#include "transfer/task_thread.h"

#include <unistd.h>

#include <atomic>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/child_process.h"

namespace headrace::transfer {
namespace {

TEST(TaskThread, TasksRunInOrderOnOneThread) {
  std::vector<int> order;
  {
    TaskThread thread("test");
    for (int i = 0; i < 1000; ++i) {
      thread.post([&, i] {
        EXPECT_TRUE(thread.on_this_thread());
        order.push_back(i);
      });
    }
    thread.flush();
    EXPECT_EQ(order.size(), 1000u);
    EXPECT_FALSE(thread.on_this_thread());
    thread.post([&] { order.push_back(1000); });
  }
  ASSERT_EQ(order.size(), 1001u) << "what was posted runs before the end";
  for (int i = 0; i <= 1000; ++i)
    EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(TaskThread, FlushWithoutTasksReturns) {
  TaskThread thread("test");
  thread.flush();
}

TEST(TaskThread, WhatATaskHoldsIsGoneAfterIt) {
  TaskThread thread("test");
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = held;
  thread.post([held = std::move(held)] {});
  thread.flush();
  EXPECT_TRUE(alive.expired());
}

TEST(TaskThread, AForkedChildHasADispatcherOfItsOwn) {
  dispatcher().post([] {});
  // Idle at the fork: a sanitizer's allocator, unlike the C library's, leaves a lock that a busy thread held to the child.
  dispatcher().flush();
  const int status = test::run_in_child([] {
    std::atomic<bool> ran = false;
    dispatcher().post([&] { ran = true; });
    dispatcher().flush();
    return ran ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace headrace::transfer
