// SPDX-License-Identifier: Apache-2.0
// Threads, processes and forks against one handle for as long as asked: HEADRACE_STRESS_SECONDS, or --seconds=N.
// Every byte is accounted for.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <headrace/headrace.h>

#include "tests/support/child_process.h"
#include "tests/support/files.h"
#include "tests/support/random_load.h"
#include "tests/support/sim_file_system.h"

namespace headrace {
namespace {

using namespace headrace::test;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kThreads = 8;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSpanBytes = 2 * kMiB;

uint64_t stress_seconds = 60;
uint64_t stress_seed = 1;

// This share of the whole time, in percent.
Clock::time_point end_of_share(uint64_t percent) {
  return Clock::now() + std::chrono::milliseconds(stress_seconds * 10 * percent);
}

struct Sum {
  std::mutex mutex;
  RandomLoadCounts counts;
  std::vector<std::string> complaints;

  void add(const RandomLoadCounts& other) {
    const std::lock_guard lock(mutex);
    counts.requests += other.requests;
    counts.bytes += other.bytes;
    counts.failed += other.failed;
    counts.cancelled += other.cancelled;
    counts.aborted += other.aborted;
    counts.ended += other.ended;
    counts.timeouts += other.timeouts;
  }
  std::string text() const {
    return fmt::format("{} requests, {} bytes, {} failed, {} cancelled, {} aborted, {} ended, {} timeouts",
                       counts.requests, counts.bytes, counts.failed, counts.cancelled, counts.aborted, counts.ended,
                       counts.timeouts);
  }
};

// Eight threads, each with its own span of the written file, until the time is over.
void hammer(Handle& handle, const File& in, uint64_t in_bytes, const File& out, Clock::time_point end, Sum& sum,
            const std::function<std::vector<std::byte>(uint64_t, uint64_t)>& read_back,
            const std::function<bool(const Error&)>& may_fail) {
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      RandomLoad load(handle, {.seed = stress_seed * 100 + number,
                               .read_file = in,
                               .read_file_bytes = in_bytes,
                               .write_file = out,
                               .span_begin = number * kSpanBytes + 777 * number,  // neighbours share granules
                               .span_bytes = kSpanBytes + 777,
                               .read_back = read_back,
                               .may_fail = may_fail});
      while (Clock::now() < end) {
        const std::vector<std::string> complaints = load.run_batch();
        if (complaints.empty()) continue;
        const std::lock_guard lock(sum.mutex);
        sum.complaints.insert(sum.complaints.end(), complaints.begin(), complaints.end());
        break;
      }
      sum.add(load.counts());
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  std::printf("[   LOAD   ] %s\n", sum.text().c_str());
}

TEST(Stress, EightThreadsOnASimulatedDiskThatFails) {
  const Clock::time_point end = end_of_share(40);
  Sum sum;
  for (uint64_t round = 0; Clock::now() < end; ++round) {
    SimDisk disk({.seed = stress_seed + round,
                  .chances = {.short_transfer = 100,
                              .interrupted = 30,
                              .try_again = 2,
                              .io_error = 10,
                              .no_space = 5,
                              .cancelled = 5,
                              .full = 50,
                              .idle_return = 20},
                  .memory_slots = 12,
                  .keep_log = false});
    SimFileSystem system(disk);
    system.put("/in", pattern(4 * kMiB + 99));
    const uint64_t out_bytes = kThreads * (kSpanBytes + 777);
    const std::shared_ptr<SimFile> out = system.put("/out", std::vector<std::byte>(out_bytes));
    Handle handle =
        make_sim_handle(disk, {.workers = 4, .block_bytes = 64 << 10, .queue_depth = 8, .requests_max = 100});
    hammer(
        handle, open_sim(system, "/in", FileMode::read), 4 * kMiB + 99, open_sim(system, "/out", FileMode::update),
        std::min(end, Clock::now() + std::chrono::seconds(10)), sum,
        [&](uint64_t offset, uint64_t length) {
          const std::lock_guard lock(disk.mutex());
          const auto begin = out->bytes.begin() + static_cast<std::ptrdiff_t>(offset);
          return std::vector<std::byte>(begin, begin + static_cast<std::ptrdiff_t>(length));
        },
        [](const Error& error) {
          return error.errno_value == EIO || error.errno_value == ENOSPC || error.errno_value == ECANCELED ||
                 error.errno_value == EAGAIN;
        });
    EXPECT_EQ(disk.violations(), std::vector<std::string>());
    EXPECT_EQ(handle.stats().unfinished_requests, 0u);
    (void)handle.close();
    EXPECT_EQ(out->bytes.size(), out_bytes);
    ASSERT_EQ(sum.complaints, std::vector<std::string>());
  }
  EXPECT_GT(sum.counts.failed, 0u);
  EXPECT_GT(sum.counts.cancelled, 0u);
  EXPECT_GT(sum.counts.aborted, 0u);
  EXPECT_GT(sum.counts.timeouts, 0u);
}

class StressEngine : public testing::TestWithParam<EngineKind> {};

TEST_P(StressEngine, EightThreadsOnTheRealDisk) {
  Result<Handle> made = Handle::create(
      {.engine = GetParam(), .workers = 3, .block_bytes = 64 << 10, .queue_depth = 8, .requests_max = 100});
  if (!made) GTEST_SKIP() << made.error().message();
  const TestFolder folder;
  write_file(folder.file("in"), pattern(4 * kMiB + 99));
  write_file(folder.file("out"), std::vector<std::byte>(kThreads * (kSpanBytes + 777)));
  const size_t descriptors = open_descriptors();
  Sum sum;
  {
    Handle handle = *std::move(made);
    hammer(
        handle, *File::open(folder.file("in"), FileMode::read), 4 * kMiB + 99,
        *File::open(folder.file("out"), FileMode::update), end_of_share(15), sum,
        [name = folder.file("out")](uint64_t offset, uint64_t length) { return read_file(name, offset, length); },
        [](const Error&) { return false; });
    EXPECT_TRUE(handle.close().has_value());
  }
  EXPECT_EQ(sum.complaints, std::vector<std::string>());
  EXPECT_EQ(file_bytes(folder.file("out")), kThreads * (kSpanBytes + 777));
  EXPECT_LE(open_descriptors(), descriptors);
}

INSTANTIATE_TEST_SUITE_P(Engines, StressEngine, testing::Values(EngineKind::posix, EngineKind::aio, EngineKind::uring),
                         [](const auto& engine) { return std::string(engine_name(engine.param)); });

// Two processes that write adjacent ragged ranges of one file: read-modify-write of the shared block would lose bytes.
TEST(Stress, TwoProcessesWriteAdjacentRaggedRangesAndNothingIsLost) {
  constexpr int kRounds = 2000;
  constexpr uint64_t kLength = 20'000;
  constexpr uint64_t kStart = 1'000;
  const TestFolder folder;
  const std::string name = folder.file("shared");
  write_file(name, std::vector<std::byte>(kStart + 2 * kLength + 5'000));
  std::array<int, 2> to_child = {};
  std::array<int, 2> to_parent = {};
  ASSERT_EQ(::pipe(to_child.data()), 0);
  ASSERT_EQ(::pipe(to_parent.data()), 0);
  // The border moves by an odd step, so that it falls everywhere in a block.
  const auto border = [](int round) { return kStart + kLength + static_cast<uint64_t>(round) * 37 % 4096; };
  const auto write_half = [&](Handle& handle, const File& file, int round, bool upper) {
    const uint64_t begin = upper ? border(round) : kStart;
    const uint64_t end = upper ? kStart + 2 * kLength : border(round);
    const std::vector<std::byte> source(end - begin,
                                        static_cast<std::byte>(upper ? 0x80 + round % 100 : 1 + round % 100));
    return handle.write(file, {.offset_bytes = begin, .source = {source.data(), source.size(), {}}})
        ->result()
        .has_value();
  };
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(to_child[1]);
    ::close(to_parent[0]);
    Handle handle = *Handle::create({.workers = 1});
    const File file = *File::open(name, FileMode::update);
    char byte = 0;
    int round = 0;
    int status = 0;
    while (::read(to_child[0], &byte, 1) == 1) {
      if (!write_half(handle, file, round++, true)) status = 1;
      if (::write(to_parent[1], &byte, 1) != 1) status = 2;
    }
    ::_exit(handle.close() ? status : 3);
  }
  ::close(to_child[0]);
  ::close(to_parent[1]);
  {
    Handle handle = *Handle::create({.workers = 1});
    const File file = *File::open(name, FileMode::update);
    int lost = 0;
    for (int round = 0; round < kRounds; ++round) {
      char byte = 'x';
      ASSERT_EQ(::write(to_child[1], &byte, 1), 1);
      ASSERT_TRUE(write_half(handle, file, round, false));
      ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
      const std::vector<std::byte> now = read_file(name, kStart - 10, 2 * kLength + 20);
      for (uint64_t i = 0; i < now.size() && lost < 5; ++i) {
        const uint64_t at = kStart - 10 + i;
        std::byte wanted{0};
        if (at >= kStart && at < border(round)) wanted = static_cast<std::byte>(1 + round % 100);
        if (at >= border(round) && at < kStart + 2 * kLength) wanted = static_cast<std::byte>(0x80 + round % 100);
        if (now[i] != wanted) {
          ++lost;
          ADD_FAILURE() << "round " << round << ": byte " << at << " is lost";
          break;
        }
      }
    }
  }
  ::close(to_child[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(file_bytes(name), kStart + 2 * kLength + 5'000);
}

TEST(Stress, ForksDuringReadsNeitherHarmTheReadsNorTheHandle) {
  constexpr int kRounds = 1000;
  constexpr uint64_t kBytes = 256 << 10;
  const TestFolder folder;
  write_file(folder.file("f"), pattern(kBytes + 4096));
  const File file = *File::open(folder.file("f"), FileMode::read);
  Handle handle = *Handle::create({.workers = 2, .block_bytes = 16 << 10});
  const Buffer buffer = *Buffer::create(kBytes);
  std::vector<std::byte> heap(kBytes);
  for (int round = 0; round < kRounds; ++round) {
    const bool in_buffer = round % 2 == 0;
    std::byte* target = in_buffer ? buffer.data() : heap.data();
    const uint64_t offset = static_cast<uint64_t>(round) % 4096;
    std::memset(target, 0, kBytes);
    const Transfer transfer =
        *handle.read(file, {.offset_bytes = offset, .target = {target, kBytes, {}}, .cache = CacheMode::bypass});
    const pid_t child = ::fork();
    if (child == 0) {
      std::memset(target, 0xFF, kBytes);  // its own copy
      if (handle.read(file, {}).has_value()) ::_exit(1);
      if (round % 50 == 0 && kThreadsMayStartAfterFork) {
        Result<Handle> own = Handle::create({.workers = 1});
        if (!own || own->read(*File::open(folder.file("f"), FileMode::read), {.target = {target, 5000, {}}})
                            ->result()
                            .value_or(0) != 5000)
          ::_exit(2);
        if (target[0] != pattern_at(0)) ::_exit(3);
        if (!own->close()) ::_exit(4);
      }
      ::_exit(0);
    }
    ASSERT_EQ(transfer.result().value(), kBytes);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "round " << round;
    for (uint64_t i = 0; i < kBytes; ++i)
      ASSERT_EQ(target[i], pattern_at(offset + i)) << "round " << round << ", byte " << i;
  }
  EXPECT_TRUE(handle.close().has_value());
}

TEST(Stress, HandlesComeAndGoWhileOthersWork) {
  const TestFolder folder;
  write_file(folder.file("f"), pattern(kMiB));
  const Clock::time_point end = end_of_share(5);
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] {
      while (Clock::now() < end) {
        Handle handle = *Handle::create({.workers = 2});
        const Buffer buffer = *Buffer::create(kMiB);
        const Transfer transfer = *handle.read(*File::open(folder.file("f"), FileMode::read),
                                               {.target = buffer.region(), .cache = CacheMode::bypass});
        const Handle moved = std::move(handle);
        if (transfer.result().value_or(0) == kMiB) {
          EXPECT_EQ(std::memcmp(buffer.data(), pattern(kMiB).data(), kMiB), 0);
        }
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const char* seconds = std::getenv("HEADRACE_STRESS_SECONDS")) {
    std::from_chars(seconds, seconds + std::strlen(seconds), headrace::stress_seconds);
  }
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    for (auto& [name, value] : {std::pair{std::string_view("--seconds="), &headrace::stress_seconds},
                                std::pair{std::string_view("--seed="), &headrace::stress_seed}}) {
      if (argument.starts_with(name))
        std::from_chars(argument.data() + name.size(), argument.data() + argument.size(), *value);
    }
  }
  return RUN_ALL_TESTS();
}
