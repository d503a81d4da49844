// SPDX-License-Identifier: Apache-2.0
// One object per process, whichever thread asks, and another one in a forked child.
#include "os/per_process.h"

#include <array>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/child_process.h"

namespace headrace::os {
namespace {

TEST(PerProcess, IsMadeOnceOfTheFirstArguments) {
  static PerProcess<std::string> text;
  EXPECT_EQ(text.find(), nullptr);
  std::string& made = text.get("first");
  EXPECT_EQ(made, "first");
  EXPECT_EQ(&text.get("second"), &made);
  EXPECT_EQ(text.find(), &made);
  EXPECT_EQ(made, "first");
}

TEST(PerProcess, IsTheSameForThreadsThatRaceForIt) {
  static PerProcess<std::string> text;
  std::array<std::string*, 4> seen = {};
  std::array<std::thread, 4> threads;
  for (size_t i = 0; i < threads.size(); ++i)
    threads[i] = std::thread([&, i] { seen[i] = &text.get("shared"); });
  for (std::thread& thread : threads)
    thread.join();
  for (const std::string* one : seen)
    EXPECT_EQ(one, &text.get("other"));
}

TEST(PerProcess, AForkedChildGetsItsOwn) {
  static PerProcess<std::string> text;
  std::string& parents = text.get("parent");
  const int status = test::run_in_child([&] {
    if (text.find() != nullptr) return 1;
    std::string& own = text.get("child");
    return &own != &parents && own == "child" && parents == "parent" && text.find() == &own ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text.find(), &parents);
}

}  // namespace
}  // namespace headrace::os
