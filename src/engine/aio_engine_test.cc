// SPDX-License-Identifier: Apache-2.0
// What is special to Linux AIO: its system-wide limit, and where blocks go.
// One thread; limits are staged in child processes.
// Owns nothing beyond each test.
#include "engine/aio_engine.h"

#include <sys/syscall.h>

#include "tests/support/child_process.h"
#include "tests/support/engine_fixture.h"

namespace headrace::engine {
namespace {

using namespace headrace::test;

TEST(AioEngine, HalvesItsDepthUntilTheSystemHasRoom) {
  const int status = run_in_child([] {
    if (!deny_system_call({.system_call = SYS_io_setup, .errno_value = EAGAIN, .at_least = 33})) return 2;
    const auto made = make_aio_engine({.depth = 256});
    return made && (*made)->caps().depth == 32 ? 0 : 3;
  });
  EXPECT_EQ(status, 0);
}

TEST(AioEngine, WithoutRoomTheErrorNamesTheLimit) {
  const int status = run_in_child([] {
    if (!deny_system_call({.system_call = SYS_io_setup, .errno_value = EAGAIN})) return 2;
    for (uint32_t depth : {1u, 32u}) {
      const auto made = make_aio_engine({.depth = depth});
      if (made || made.error().code != ErrorCode::unavailable || made.error().errno_value != EAGAIN) return 3;
      if (made.error().detail.find("fs.aio-max-nr") == std::string::npos) return 4;
    }
    return 0;
  });
  EXPECT_EQ(status, 0);
}

// io_submit refused for lack of memory with nothing in flight: waiting would be for ever.
TEST(AioEngine, KernelThatTakesNothingIsReplacedByTheThreads) {
  TemporaryFolder folder;
  const os::Fd file = open_file(make_file(folder, 64 << 10, 2), O_RDONLY | O_DIRECT);
  const int status = run_in_child([&] {
    const auto made = make_aio_engine({.depth = 4});
    if (!made) return 2;
    if (!deny_system_call({.system_call = SYS_io_submit, .errno_value = EAGAIN})) return 3;
    const Memory target(64 << 10, 1);
    std::vector<Block> blocks;
    for (size_t at = 0; at < target.bytes(); at += 4096) {
      blocks.push_back({.cookie = at,
                        .path = Path::direct,
                        .descriptor = file.get(),
                        .offset_bytes = at,
                        .data = target.data() + at,
                        .length_bytes = 4096});
    }
    if (complete(**made, blocks).size() != blocks.size()) return 4;
    return target.holds(2, 0, target.bytes(), 0) ? 0 : 5;
  });
  EXPECT_EQ(status, 0);
}

TEST(AioEngine, BlocksWithoutAThreadCompleteWithTheReason) {
  TemporaryFolder folder;
  const os::Fd file = open_file(make_file(folder, 4096), O_RDONLY);
  const int status = run_in_child([&] {
    const auto made = make_aio_engine({.depth = 4});
    if (!made) return 2;
    if (!deny_system_call({.system_call = SYS_clone3, .errno_value = EAGAIN}) ||
        !deny_system_call({.system_call = SYS_clone, .errno_value = EAGAIN})) {
      return 3;
    }
    const Memory target(4096, 1);
    const Block block = {.descriptor = file.get(), .data = target.data(), .length_bytes = 4096};
    return complete_one(**made, block) == -EAGAIN ? 0 : 4;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace headrace::engine
