// SPDX-License-Identifier: Apache-2.0
// The helper threads: deaf to signals, no more than needed, undisturbed by interruptions.
// One owner thread per test.
// Owns nothing beyond each test.
#include "engine/thread_pool_io.h"

#include <signal.h>
#include <sys/resource.h>

#include <fstream>

#include "tests/support/child_process.h"
#include "tests/support/engine_fixture.h"

namespace headrace::engine {
namespace {

using namespace headrace::test;

std::vector<std::filesystem::path> helper_threads() {
  std::vector<std::filesystem::path> helpers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    if (name == "headrace-io") helpers.push_back(entry.path());
  }
  return helpers;
}

Results run(IoThreads& threads, WakeEvent& event, std::span<const Block> blocks) {
  Results results;
  EXPECT_EQ(threads.submit(blocks), blocks.size());
  const Clock::time_point deadline = Clock::now() + kWatchdog;
  std::array<Completion, 4> done = {};
  while (threads.in_flight() > 0) {
    const size_t count = threads.reap(done);
    for (const Completion& completion : std::span(done).first(count))
      results[completion.cookie] = completion.result;
    if (count == 0 && !event.sleep(deadline)) break;
  }
  EXPECT_EQ(threads.in_flight(), 0u);
  return results;
}

TEST(IoThreads, StartsNoThreadBeforeWorkAndNoMoreThanTheDepth) {
  TemporaryFolder folder;
  const os::Fd file = open_file(make_file(folder, 4096), O_RDONLY);
  const Memory target(4096, 1);
  WakeEvent event;
  ASSERT_TRUE(event.open(WakeEvent::Mode::polled).has_value());
  IoThreads threads(3, event);
  EXPECT_EQ(helper_threads().size(), 0u);
  std::vector<Block> blocks;
  for (uint64_t i = 0; i < 3; ++i) {
    blocks.push_back({.cookie = i, .descriptor = file.get(), .data = target.data() + i, .length_bytes = 1});
  }
  for (int round = 0; round < 20; ++round)
    (void)run(threads, event, blocks);
  EXPECT_LE(helper_threads().size(), 3u);
  EXPECT_GE(helper_threads().size(), 1u);
}

TEST(IoThreads, BlockEverySignal) {
  TemporaryFolder folder;
  const os::Fd file = open_file(make_file(folder, 4096), O_RDONLY);
  std::byte target[1];
  WakeEvent event;
  ASSERT_TRUE(event.open(WakeEvent::Mode::polled).has_value());
  IoThreads threads(1, event);
  (void)run(threads, event, std::vector<Block>{{.descriptor = file.get(), .data = target, .length_bytes = 1}});
  ASSERT_EQ(helper_threads().size(), 1u);
  std::ifstream status(helper_threads().front() / "status");
  std::string line;
  uint64_t blocked = 0;
  while (std::getline(status, line)) {
    if (line.starts_with("SigBlk:")) blocked = std::stoull(line.substr(7), nullptr, 16);
  }
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGPROF, SIGXFSZ, SIGPIPE}) {
    EXPECT_NE(blocked & (uint64_t{1} << (number - 1)), 0u) << "signal " << number;
  }
}

// A write past the size limit must come back as EFBIG; with SIGXFSZ open it would end the program.
TEST(IoThreads, FileSizeLimitIsAnErrorAndNotTheEnd) {
  TemporaryFolder folder;
  const os::Fd file = open_file(folder.file("limited"), O_RDWR | O_CREAT);
  const int status = run_in_child([&] {
    const rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const Memory source(8192, 1);
    WakeEvent event;
    if (!event.open(WakeEvent::Mode::polled)) return 3;
    IoThreads threads(2, event);
    const std::vector<Block> blocks = {
        {.cookie = 1,
         .operation = Operation::write,
         .descriptor = file.get(),
         .data = source.data(),
         .length_bytes = 8192},
        {.cookie = 2,
         .operation = Operation::write,
         .descriptor = file.get(),
         .offset_bytes = 4096,
         .data = source.data(),
         .length_bytes = 1},
    };
    Results results = run(threads, event, blocks);
    return results[1] == 4096 && results[2] == -EFBIG ? 0 : 4;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace headrace::engine
