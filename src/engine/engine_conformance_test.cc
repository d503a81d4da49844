// SPDX-License-Identifier: Apache-2.0
// What engine.h promises, asked of every engine that moves data. A new engine is one more line at the end.
// The test thread owns the engine; some tests wake it from others.
// Files lie on the build folder's disk.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/engine_fixture.h"

namespace headrace::engine {
namespace {

using namespace headrace::test;
using std::chrono::milliseconds;

class EngineConformance : public testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    auto made = factory_for(GetParam())({.depth = 4});
    if (!made) GTEST_SKIP() << made.error().message();
  }
  std::unique_ptr<Engine> make(uint32_t depth) {
    auto made = factory_for(GetParam())({.depth = depth});
    EXPECT_TRUE(made.has_value()) << made.error().message();
    return made ? *std::move(made) : nullptr;
  }
  TemporaryFolder folder_;
};

// Pieces of `piece_bytes` that cover `bytes`, with cookies 0, 1, 2, …
std::vector<Block> cut(Block first, size_t bytes, size_t piece_bytes) {
  std::vector<Block> blocks;
  for (size_t at = 0; at < bytes; at += piece_bytes) {
    Block block = first;
    block.cookie = blocks.size();
    block.offset_bytes += at;
    block.data += at;
    block.length_bytes = static_cast<uint32_t>(std::min(piece_bytes, bytes - at));
    blocks.push_back(block);
  }
  return blocks;
}

size_t open_descriptors() {
  using std::filesystem::directory_iterator;
  return static_cast<size_t>(std::distance(directory_iterator("/proc/self/fd"), directory_iterator()));
}

int64_t thread_cpu_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

TEST_P(EngineConformance, CapsNameADepthAndABlockThatOneSystemCallCanMove) {
  for (uint32_t depth : {0u, 1u, 7u, 128u, UINT32_MAX}) {
    const auto engine = make(depth);
    ASSERT_NE(engine, nullptr);
    EXPECT_GE(engine->caps().depth, 1u);
    EXPECT_LE(engine->caps().depth, std::max(depth, 1u));
    EXPECT_EQ(engine->caps().block_bytes_max, 1u << 30);
    EXPECT_FALSE(engine->caps().detail.empty());
  }
}

TEST_P(EngineConformance, OddSizesAndOffsetsRoundTripThroughThePageCache) {
  const auto engine = make(4);
  const os::Fd file = open_file(folder_.file("odd"), O_RDWR | O_CREAT);
  for (uint32_t size : {0u, 1u, 511u, 512u, 513u, 4095u, 4096u, 4097u, (1u << 20) + 3}) {
    for (uint64_t offset : {0u, 1u, 4095u, 65537u}) {
      const Memory source(size + 1, static_cast<uint8_t>(size + offset));
      const Memory target(size + 1, 99);
      EXPECT_EQ(complete_one(*engine, {.cookie = 1,
                                       .operation = Operation::write,
                                       .descriptor = file.get(),
                                       .offset_bytes = offset,
                                       .data = source.data(),
                                       .length_bytes = size}),
                size);
      EXPECT_EQ(complete_one(*engine, {.cookie = 2,
                                       .descriptor = file.get(),
                                       .offset_bytes = offset,
                                       .data = target.data(),
                                       .length_bytes = size}),
                size);
      EXPECT_EQ(std::memcmp(source.data(), target.data(), size), 0) << size << " at " << offset;
      EXPECT_EQ(target.data()[size], Memory::pattern(99, size)) << "a byte behind the block was touched";
    }
  }
}

TEST_P(EngineConformance, AlignedBlocksRoundTripPastThePageCache) {
  if (folder_.on_tmpfs()) GTEST_SKIP() << "the build folder is on tmpfs, which does not enforce direct I/O";
  const auto engine = make(8);
  const os::Fd file = open_file(folder_.file("direct"), O_RDWR | O_CREAT | O_DIRECT);
  const Memory source(4 << 20, 5);
  const Memory target(4 << 20, 6);
  Block block = {.operation = Operation::write, .path = Path::direct, .descriptor = file.get(), .data = source.data()};
  for (const auto& [cookie, result] : complete(*engine, cut(block, source.bytes(), 256 << 10))) {
    EXPECT_EQ(result, 256 << 10) << cookie;
  }
  block.operation = Operation::read;
  block.data = target.data();
  const Results results = complete(*engine, cut(block, target.bytes(), 128 << 10));
  EXPECT_EQ(results.size(), 32u);
  EXPECT_EQ(std::memcmp(source.data(), target.data(), source.bytes()), 0);
}

TEST_P(EngineConformance, ColdBufferedFileIsReadToTheEnd) {
  const auto engine = make(16);
  const os::Fd file = open_file(make_file(folder_, 16 << 20, 3), O_RDONLY);
  ASSERT_EQ(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  const Memory target(16 << 20, 77);
  const Results results =
      complete(*engine, cut({.descriptor = file.get(), .data = target.data()}, target.bytes(), 100'000));
  EXPECT_EQ(results.size(), 168u);
  EXPECT_TRUE(target.holds(3, 0, target.bytes(), 0));
}

TEST_P(EngineConformance, BufferedDirectAndDatasyncBlocksMixInOneSubmit) {
  const auto engine = make(6);
  const std::string path = make_file(folder_, 1 << 20, 9);
  const os::Fd buffered = open_file(path, O_RDWR);
  const os::Fd direct = open_file(path, O_RDWR | O_DIRECT);
  const Memory target(1 << 20, 0);
  std::vector<Block> blocks = cut({.data = target.data()}, target.bytes(), 64 << 10);
  for (Block& block : blocks) {
    block.path = block.cookie % 3 == 0 ? Path::buffered : Path::direct;
    block.descriptor = block.path == Path::buffered ? buffered.get() : direct.get();
  }
  blocks.insert(blocks.begin() + 5,
                {.cookie = 100, .operation = Operation::datasync, .path = Path::direct, .descriptor = direct.get()});
  blocks.push_back({.cookie = 101, .operation = Operation::datasync, .descriptor = buffered.get()});
  for (const auto& [cookie, result] : complete(*engine, blocks)) {
    EXPECT_EQ(result, cookie >= 100 ? 0 : 64 << 10) << cookie;
  }
  EXPECT_TRUE(target.holds(9, 0, target.bytes(), 0));
}

TEST_P(EngineConformance, SubmitAcceptsAPrefixWithinTheDepth) {
  const os::Fd file = open_file(make_file(folder_, 64 << 10), O_RDONLY);
  for (uint32_t depth : {1u, 2u, 3u}) {
    const auto engine = make(depth);
    const Memory target(64 << 10, 1);
    const std::vector<Block> blocks = cut({.descriptor = file.get(), .data = target.data()}, target.bytes(), 4096);
    const size_t accepted = engine->submit(blocks);
    EXPECT_EQ(accepted, depth);
    EXPECT_EQ(engine->submit(std::span(blocks).subspan(accepted)), 0u) << "full until a completion is reaped";
    Results results;
    reap_into(*engine, results, accepted);
    for (size_t i = 0; i < accepted; ++i)
      EXPECT_TRUE(results.contains(i)) << "not a prefix: " << i;
    EXPECT_EQ(complete(*engine, std::span(blocks).subspan(accepted)).size(), blocks.size() - accepted);
    EXPECT_TRUE(target.holds(0, 0, target.bytes(), 0));
  }
}

TEST_P(EngineConformance, TenThousandBlocksPassThroughDepthThree) {
  constexpr size_t kPiece = 512;
  constexpr size_t kBytes = 10'000 * kPiece;
  const auto engine = make(3);
  const std::string path = make_file(folder_, kBytes, 21);
  for (Path route : {Path::buffered, Path::direct}) {
    const os::Fd file = open_file(path, O_RDONLY | (route == Path::direct ? O_DIRECT : 0));
    const Memory target(kBytes, 22);
    const Results results =
        complete(*engine, cut({.path = route, .descriptor = file.get(), .data = target.data()}, kBytes, kPiece));
    EXPECT_EQ(results.size(), 10'000u);
    EXPECT_TRUE(target.holds(21, 0, kBytes, 0));
  }
}

TEST_P(EngineConformance, ReadAtTheEndOfTheFileComesBackShort) {
  const auto engine = make(4);
  const os::Fd file = open_file(make_file(folder_, 1000), O_RDONLY);
  const Memory target(4096, 50);
  Block block = {.cookie = 1, .descriptor = file.get(), .data = target.data(), .length_bytes = 4096};
  EXPECT_EQ(complete_one(*engine, block), 1000);
  EXPECT_TRUE(target.holds(0, 0, 1000, 0));
  EXPECT_TRUE(target.holds(50, 1000, 3096, 1000));
  block.offset_bytes = 1000;
  EXPECT_EQ(complete_one(*engine, block), 0);
  block.offset_bytes = uint64_t{1} << 40;
  EXPECT_EQ(complete_one(*engine, block), 0);
}

TEST_P(EngineConformance, ErrorsComeAsCompletionsAndSpareTheNeighbours) {
  const auto engine = make(8);
  const std::string path = make_file(folder_, 64 << 10);
  const os::Fd buffered = open_file(path, O_RDONLY);
  const os::Fd direct = open_file(path, O_RDONLY | O_DIRECT);
  const Memory target(64 << 10, 1);
  void* no_access = ::mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(no_access, MAP_FAILED);
  auto* const bad = static_cast<std::byte*>(no_access);
  const auto read = [](uint64_t cookie, Path route, int descriptor, uint64_t offset, std::byte* data) {
    return Block{.cookie = cookie,
                 .path = route,
                 .descriptor = descriptor,
                 .offset_bytes = offset,
                 .data = data,
                 .length_bytes = 4096};
  };
  const std::vector<Block> blocks = {
      read(0, Path::direct, -1, 0, target.data()),
      read(1, Path::direct, direct.get(), 0, target.data()),
      read(2, Path::buffered, -1, 0, target.data() + 4096),
      read(3, Path::buffered, buffered.get(), 4096, target.data() + 4096),
      read(4, Path::direct, direct.get(), 0, bad),
      read(5, Path::buffered, buffered.get(), 0, bad),
      read(6, Path::direct, direct.get(), 1, target.data() + 8192),
      read(7, Path::direct, direct.get(), 8192, target.data() + 8192),
      read(8, Path::buffered, buffered.get(), UINT64_MAX - 5000, target.data() + 12288),
      {.cookie = 9,
       .operation = Operation::write,
       .descriptor = buffered.get(),
       .data = target.data(),
       .length_bytes = 16},
      {.cookie = 10, .operation = Operation::datasync, .descriptor = -1},
  };
  const Results results = complete(*engine, blocks);
  ASSERT_EQ(results.size(), blocks.size());
  EXPECT_EQ(results.at(0), -EBADF);
  EXPECT_EQ(results.at(1), 4096);
  EXPECT_EQ(results.at(2), -EBADF);
  EXPECT_EQ(results.at(3), 4096);
  EXPECT_EQ(results.at(4), -EFAULT);
  EXPECT_EQ(results.at(5), -EFAULT);
  if (!folder_.on_tmpfs()) {
    EXPECT_EQ(results.at(6), -EINVAL);
  }
  EXPECT_EQ(results.at(7), 4096);
  EXPECT_EQ(results.at(8), -EINVAL);
  EXPECT_EQ(results.at(9), -EBADF);
  EXPECT_EQ(results.at(10), -EBADF);
  EXPECT_TRUE(target.holds(0, 0, 12288, 0));
  ::munmap(no_access, 8192);
}

TEST_P(EngineConformance, DatasyncCompletesWithZeroAndRefusesAPipe) {
  const auto engine = make(2);
  const os::Fd file = open_file(make_file(folder_, 4096), O_RDWR);
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const os::Fd reader(ends[0]);
  const os::Fd writer(ends[1]);
  EXPECT_EQ(complete_one(*engine, {.operation = Operation::datasync, .descriptor = file.get()}), 0);
  EXPECT_EQ(complete_one(*engine, {.operation = Operation::datasync, .descriptor = writer.get()}), -EINVAL);
}

TEST_P(EngineConformance, WakeBeforeReapEndsTheNextReap) {
  const auto engine = make(2);
  std::array<Completion, 4> done = {};
  for (int i = 0; i < 100; ++i) {
    engine->wake();
    EXPECT_EQ(engine->reap(done, std::nullopt), 0u);
  }
}

TEST_P(EngineConformance, WakeFromAnotherThreadEndsTheReapThatSleeps) {
  const auto engine = make(2);
  std::array<Completion, 4> done = {};
  for (int i = 0; i < 50; ++i) {
    std::jthread waker([&] { engine->wake(); });
    EXPECT_EQ(engine->reap(done, std::nullopt), 0u);
  }
}

// Every post must be seen although several wakes may become one.
TEST_P(EngineConformance, WakeStormFromFourThreadsLosesNoPost) {
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kPosts = 5'000;
  const auto engine = make(4);
  const os::Fd file = open_file(make_file(folder_, 4096), O_RDONLY);
  const Memory target(size_t{4} * 4096, 1);  // a place for each block in flight
  std::atomic<uint32_t> posted = 0;
  std::vector<std::jthread> wakers;
  wakers.reserve(kThreads);
  for (uint32_t i = 0; i < kThreads; ++i) {
    wakers.emplace_back([&] {
      for (uint32_t post = 0; post < kPosts; ++post) {
        posted.fetch_add(1);
        engine->wake();
      }
    });
  }
  std::vector<Block> idle = {{.cookie = 0}, {.cookie = 1}, {.cookie = 2}, {.cookie = 3}};
  for (Block& block : idle) {
    block.descriptor = file.get();
    block.data = target.data() + block.cookie * 4096;
    block.length_bytes = 4096;
  }
  const std::vector<Block> blocks = idle;
  std::array<Completion, 4> done = {};
  while (posted.load() < kThreads * kPosts || idle.size() < blocks.size()) {
    if (posted.load() < kThreads * kPosts && !idle.empty() && engine->submit({&idle.back(), 1}) == 1) idle.pop_back();
    const size_t count = engine->reap(done, std::nullopt);
    for (const Completion& completion : std::span(done).first(count)) {
      EXPECT_EQ(completion.result, 4096);
      idle.push_back(blocks.at(completion.cookie));
    }
  }
}

TEST_P(EngineConformance, DeadlineEndsTheReapAndAPastOnePolls) {
  const auto engine = make(2);
  std::array<Completion, 4> done = {};
  const Clock::time_point start = Clock::now();
  EXPECT_EQ(engine->reap(done, start + milliseconds(50)), 0u);
  const auto slept = Clock::now() - start;
  EXPECT_GE(slept, milliseconds(50));
  EXPECT_LT(slept, kWatchdog);
  EXPECT_EQ(engine->reap(done, start), 0u);
  EXPECT_EQ(engine->reap(done, Clock::time_point::min()), 0u);
  EXPECT_EQ(engine->reap({}, std::nullopt), 0u);

  const os::Fd file = open_file(make_file(folder_, 4096), O_RDONLY);
  const Memory target(4096, 1);
  const Block block = {.cookie = 5, .descriptor = file.get(), .data = target.data(), .length_bytes = 4096};
  ASSERT_EQ(engine->submit({&block, 1}), 1u);
  size_t count = 0;
  while (count == 0 && Clock::now() < start + kWatchdog)
    count = engine->reap(done, start);
  ASSERT_EQ(count, 1u) << "polling alone must bring completions in";
  EXPECT_EQ(done[0].result, 4096);
}

TEST_P(EngineConformance, SleepingReapTakesNoProcessorTime) {
  const auto engine = make(8);
  std::array<Completion, 4> done = {};
  engine->wake();
  (void)engine->reap(done, std::nullopt);
  const int64_t before = thread_cpu_ns();
  EXPECT_EQ(engine->reap(done, Clock::now() + milliseconds(300)), 0u);
  EXPECT_LT(thread_cpu_ns() - before, 20'000'000) << "of 300 ms";
}

TEST_P(EngineConformance, DestructionWaitsForBlocksInFlight) {
  const std::string path = make_file(folder_, 2 << 20, 4);
  for (Path route : {Path::buffered, Path::direct}) {
    const os::Fd file = open_file(path, O_RDONLY | (route == Path::direct ? O_DIRECT : 0));
    for (int round = 0; round < 10; ++round) {
      (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
      Memory target(2 << 20, 70);
      auto engine = make(32);
      const auto blocks =
          cut({.path = route, .descriptor = file.get(), .data = target.data()}, target.bytes(), 64 << 10);
      ASSERT_EQ(engine->submit(blocks), blocks.size());
      if (round % 2 == 1) engine->wake();
      engine.reset();
      EXPECT_TRUE(target.holds(4, 0, target.bytes(), 0));
    }
  }
}

TEST_P(EngineConformance, RegisteredMemoryIsReadWrittenReplacedAndReleased) {
  const auto engine = make(4);
  const uint32_t slots = engine->caps().memory_slots;
  const Memory memory(1 << 20, 11);
  const Region region = {.data = memory.data(), .bytes = memory.bytes()};
  if (slots == 0) {
    EXPECT_LT(engine->register_memory(0, region), 0) << "no slots, so nothing can be registered";
    engine->unregister_memory(0);
    return;
  }
  const os::Fd file = open_file(folder_.file("fixed"), O_RDWR | O_CREAT | O_DIRECT);
  ASSERT_EQ(::ftruncate(file.get(), 1 << 20), 0);
  Block block = {.operation = Operation::write,
                 .path = Path::direct,
                 .descriptor = file.get(),
                 .memory_slot = static_cast<int32_t>(slots - 1),
                 .data = memory.data()};
  EXPECT_LT(engine->register_memory(slots, region), 0) << "slot out of range";
  EXPECT_LT(engine->register_memory(0, {}), 0) << "nothing to register";
  ASSERT_EQ(engine->register_memory(slots - 1, region), 0);
  for (const auto& [cookie, result] : complete(*engine, cut(block, memory.bytes(), 64 << 10)))
    EXPECT_EQ(result, 64 << 10) << cookie;

  const Memory target(1 << 20, 12);  // replaces the first region in its slot, then a reading of it
  ASSERT_EQ(engine->register_memory(slots - 1, {.data = target.data(), .bytes = target.bytes()}), 0);
  block.operation = Operation::read;
  block.data = target.data();
  for (const auto& [cookie, result] : complete(*engine, cut(block, target.bytes(), 64 << 10)))
    EXPECT_EQ(result, 64 << 10) << cookie;
  EXPECT_TRUE(target.holds(11, 0, target.bytes(), 0));

  block.length_bytes = 4096;
  block.data = memory.data();
  EXPECT_EQ(complete_one(*engine, block), -EFAULT) << "memory outside the region of the slot";
  engine->unregister_memory(slots - 1);
  block.data = target.data();
  EXPECT_EQ(complete_one(*engine, block), -EFAULT) << "the slot is empty";
  ASSERT_EQ(engine->register_memory(slots - 1, region), 0);
  block.data = memory.data();
  EXPECT_EQ(complete_one(*engine, block), 4096) << "a slot can be used again";
  block.memory_slot = kNotRegistered;
  EXPECT_EQ(complete_one(*engine, block), 4096) << "and be ignored";
}

TEST_P(EngineConformance, TwoHundredConstructionsLeakNoDescriptor) {
  const os::Fd file = open_file(make_file(folder_, 4096), O_RDONLY);
  const Memory target(4096, 1);
  const Block block = {.descriptor = file.get(), .data = target.data(), .length_bytes = 4096};
  const size_t before = open_descriptors();
  for (int i = 0; i < 200; ++i) {
    const auto engine = make(4);
    ASSERT_NE(engine, nullptr);
    if (i % 3 == 0) {
      EXPECT_EQ(complete_one(*engine, block), 4096);
    }
    if (i % 3 == 1) engine->wake();
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(EngineConformance, DescriptorsAreClosedOnExec) {
  const auto engine = make(4);
  for (int descriptor = 3; descriptor < 256; ++descriptor) {
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    std::error_code none;
    const std::string target = std::filesystem::read_symlink(link, none).string();
    if (!target.starts_with("anon_inode:")) continue;
    EXPECT_NE(::fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0) << target;
  }
}

TEST_P(EngineConformance, LockedMemoryLimitRefusesRegistrationButNotTransfers) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another user (root is exempt from the limit) needs root";
  const os::Fd file = open_file(make_file(folder_, 1 << 20, 31), O_RDONLY);
  const int status = run_in_child([&] {
    const rlimit limit = {.rlim_cur = 65536, .rlim_max = 65536};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setuid(65534) != 0) return 2;
    const auto made = factory_for(GetParam())({.depth = 8});
    if (!made) return 3;
    const Memory target(1 << 20, 1);
    if ((*made)->register_memory(0, {.data = target.data(), .bytes = target.bytes()}) >= 0) return 4;
    const auto blocks = cut({.descriptor = file.get(), .data = target.data()}, target.bytes(), 64 << 10);
    if (complete(**made, blocks).size() != blocks.size()) return 5;
    return target.holds(31, 0, target.bytes(), 0) ? 0 : 6;
  });
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineConformance,
                         testing::Values(EngineKind::posix, EngineKind::aio, EngineKind::uring), kind_name);

}  // namespace
}  // namespace headrace::engine
