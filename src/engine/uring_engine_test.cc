// SPDX-License-Identifier: Apache-2.0
// What is special to io_uring: reasons why it cannot be had, and what it does without its newer features.
// One thread; filters are staged in child processes.
// Owns nothing beyond each test.
#include "engine/uring_engine.h"

#include <sys/syscall.h>

#include <array>
#include <cerrno>

#include <liburing.h>

#include "tests/support/child_process.h"
#include "tests/support/engine_fixture.h"

namespace headrace::engine {
namespace {

using namespace headrace::test;

// The detail of the error that comes when `denial` holds; empty when the engine works all the same.
void expect_refusal(const Denial& denial, std::string_view operation, std::string_view hint) {
  const int status = run_in_child([&] {
    if (!deny_system_call(denial)) return 2;
    const auto made = make_uring_engine({.depth = 32});
    if (made) return 3;
    const Error& error = made.error();
    if (error.code != ErrorCode::unavailable || error.errno_value != denial.errno_value) return 4;
    if (error.operation != operation) return 5;
    return error.detail.find(hint) != std::string::npos ? 0 : 6;
  });
  EXPECT_EQ(status, 0) << operation << " with errno " << denial.errno_value;
}

TEST(UringEngine, RefusalsAreExplained) {
  expect_refusal({.system_call = SYS_io_uring_setup, .errno_value = EPERM}, "io_uring_setup", "seccomp");
  expect_refusal({.system_call = SYS_io_uring_setup, .errno_value = ENOSYS}, "io_uring_setup", "5.1");
  expect_refusal({.system_call = SYS_io_uring_setup, .errno_value = ENOMEM}, "io_uring_setup", "ulimit -l");
  expect_refusal({.system_call = SYS_io_uring_setup, .errno_value = EMFILE}, "io_uring_setup", "ulimit -n");
  expect_refusal({.system_call = SYS_io_uring_setup, .errno_value = EINVAL}, "io_uring_setup", "5.11");
  expect_refusal({.system_call = SYS_io_uring_enter, .errno_value = EPERM}, "io_uring_enter", "seccomp");
  expect_refusal({.system_call = SYS_io_uring_register, .errno_value = EPERM}, "io_uring_register", "seccomp");
}

class UringEngineHere : public testing::Test {
 protected:
  void SetUp() override {
    const auto made = make_uring_engine({.depth = 4});
    if (!made) GTEST_SKIP() << made.error().message();
  }
};

TEST_F(UringEngineHere, ShortOfMemoryItTakesASmallerDepth) {
  const int status = run_in_child([] {
    if (!deny_system_call({.system_call = SYS_io_uring_setup, .errno_value = ENOMEM, .at_least = 100})) return 2;
    const auto made = make_uring_engine({.depth = 256});
    return made && (*made)->caps().depth == 64 ? 0 : 3;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(UringEngineHere, WithoutASparseTableItWorksUnregistered) {
  TemporaryFolder folder;
  const os::Fd file = open_file(make_file(folder, 4096, 6), O_RDONLY);
  const int status = run_in_child([&] {
    if (!deny_system_call({.system_call = SYS_io_uring_register,
                           .errno_value = EINVAL,
                           .argument = 1,
                           .at_least = IORING_REGISTER_BUFFERS2}))
      return 2;
    const auto made = make_uring_engine({.depth = 4});
    if (!made || (*made)->caps().memory_slots != 0) return 3;
    const Memory target(4096, 1);
    if ((*made)->register_memory(0, {.data = target.data(), .bytes = 4096}) >= 0) return 4;
    const Block block = {.descriptor = file.get(), .data = target.data(), .length_bytes = 4096};
    return complete_one(**made, block) == 4096 && target.holds(6, 0, 4096, 0) ? 0 : 5;
  });
  EXPECT_EQ(status, 0);
}

// A filter that the program installs after the engine was made.
TEST_F(UringEngineHere, WhatTheKernelNeverTakesComesBackAsAnError) {
  TemporaryFolder folder;
  const os::Fd file = open_file(make_file(folder, 4096, 6), O_RDONLY);
  const int status = run_in_child([&] {
    auto made = make_uring_engine({.depth = 4});
    const Memory target(4096, 1);
    const Block block = {.descriptor = file.get(), .data = target.data(), .length_bytes = 4096};
    if (!made || complete_one(**made, block) != 4096) return 2;
    if (!deny_system_call({.system_call = SYS_io_uring_enter, .errno_value = EPERM})) return 3;
    const std::array<Block, 4> blocks = {block, block, block, block};
    if ((*made)->submit(blocks) != blocks.size()) return 4;
    size_t count = 0;
    while (count < blocks.size()) {
      std::array<Completion, 3> completions;
      const size_t got = (*made)->reap(completions, std::nullopt);
      for (size_t i = 0; i < got; ++i) {
        if (completions[i].result != -EPERM) return 5;
      }
      count += got;
    }
    if ((*made)->submit(std::span(blocks).first(1)) != 1) return 6;  // its place is free again
    made->reset();                                                   // and the end comes
    return 0;
  });
  EXPECT_EQ(status, 0);
}

// Regions beyond 1 GiB, and memory that cannot be pinned, are the kernel's to refuse.
TEST_F(UringEngineHere, RegistrationPassesOnTheErrnoOfTheKernel) {
  const auto engine = *make_uring_engine({.depth = 4});
  if (engine->caps().memory_slots == 0) GTEST_SKIP() << "no registered memory on this kernel";
  EXPECT_EQ(engine->register_memory(0, {.data = reinterpret_cast<std::byte*>(4096), .bytes = 4096}), -EFAULT);
  const Memory memory(4096);
  EXPECT_EQ(engine->register_memory(0, {.data = memory.data(), .bytes = (uint64_t{1} << 30) + 4096}), -EFAULT);
  EXPECT_EQ(engine->register_memory(0, {.data = memory.data(), .bytes = 4096, .device = {.kind = DeviceKind::cuda}}),
            -EOPNOTSUPP);
}

}  // namespace
}  // namespace headrace::engine
