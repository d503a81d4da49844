// SPDX-License-Identifier: Apache-2.0
// The public interface, on every engine that moves data and every file system that can be had: sizes, offsets,
// pointers, kinds of memory, copy and cache modes, queue depths; every byte is compared, and what lies around it.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <headrace/headrace.h>

#include "tests/support/files.h"
#include "tests/support/random_load.h"
#include "tests/support/stage.h"

namespace headrace {
namespace {

using namespace headrace::test;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr std::byte kUntouched{0x5A};

struct Place {
  EngineKind engine;
  StageKind stage;
};

void PrintTo(const Place& place, std::ostream* out) {
  *out << engine_name(place.engine) << " on " << stage_name(place.stage);
}

class IoConformance : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (on().folder.empty()) GTEST_SKIP() << "no " << stage_name(GetParam().stage) << ": " << on().why_not;
    Result<Handle> made = Handle::create({.engine = GetParam().engine, .workers = 1});
    if (!made) GTEST_SKIP() << made.error().message();
    folder_.emplace(on().folder);
  }

  const Stage& on() const { return stage(GetParam().stage); }
  std::string path(const std::string& name) const { return folder_->file(name); }
  Handle make(HandleOptions options = {}) const {
    options.engine = GetParam().engine;
    return *Handle::create(options);
  }

  std::optional<TestFolder> folder_;
};

// Bytes in heap memory or in a Buffer, at a chosen distance from a page, between untouched ones.
class Memory {
 public:
  enum class Kind : uint8_t { heap, buffer };
  Memory(Kind kind, uint64_t bytes, uint64_t skew) : bytes_(bytes), skew_(skew) {
    const uint64_t all = bytes + skew + uint64_t{2} * 4096;
    if (kind == Kind::buffer) {
      buffer_ = *Buffer::create(all);
      base_ = buffer_.data();
    } else {
      heap_.resize(all + 4096);
      base_ = heap_.data() + (-reinterpret_cast<intptr_t>(heap_.data()) & 4095);
    }
    all_ = all;
    std::memset(base_, static_cast<int>(kUntouched), all);
  }
  std::byte* data() const { return base_ + 4096 + skew_; }
  Region region() const { return {data(), bytes_, {}}; }
  ConstRegion source() const { return {data(), bytes_, {}}; }
  void fill(uint64_t offset) const {
    for (uint64_t i = 0; i < bytes_; ++i)
      data()[i] = pattern_at(offset + i);
  }
  bool holds(uint64_t bytes, uint64_t offset) const {
    for (uint64_t i = 0; i < bytes; ++i) {
      if (data()[i] != pattern_at(offset + i)) return false;
    }
    return true;
  }
  bool neighbours_untouched() const {
    return std::all_of(base_, data(), [](std::byte byte) { return byte == kUntouched; }) &&
           std::all_of(data() + bytes_, base_ + all_, [](std::byte byte) { return byte == kUntouched; });
  }

 private:
  uint64_t bytes_;
  uint64_t skew_;
  uint64_t all_ = 0;
  Buffer buffer_;
  std::vector<std::byte> heap_;
  std::byte* base_ = nullptr;
};

TEST_P(IoConformance, EverySizeOffsetAndPointerRoundTripsAndTouchesNothingElse) {
  constexpr uint64_t kBlock = 64 << 10;
  constexpr uint32_t kDepth = 4;
  Handle handle = make({.workers = 2, .block_bytes = kBlock, .queue_depth = kDepth});
  const std::array<uint64_t, 14> sizes = {0,          1,
                                          511,        512,
                                          513,        4095,
                                          4096,       4097,
                                          kBlock - 1, kBlock,
                                          kBlock + 1, kBlock * kDepth + 3,
                                          3 * kMiB,   3 * kMiB + 4097};
  const std::array<uint64_t, 6> offsets = {0, 1, 512, 4095, 4096, 65'537};
  uint32_t number = 0;
  for (const uint64_t size : sizes) {
    for (const uint64_t offset : offsets) {
      // Skew, memory and modes take turns: all combinations would only repeat themselves.
      const uint64_t skew = std::array<uint64_t, 4>{0, 64, 1, 512}[number % 4];
      const auto kind = number / 4 % 2 == 0 ? Memory::Kind::buffer : Memory::Kind::heap;
      const auto copy = static_cast<CopyMode>(number % 3);
      const auto cache = static_cast<CacheMode>(number / 3 % 3);
      ++number;
      const std::string name = path("f");
      const uint64_t old_bytes = offset + size / 2 + 5000;
      write_file(name, std::vector<std::byte>(old_bytes, kUntouched));
      const Memory source(kind, size, skew);
      source.fill(offset);
      const Result<File> file = File::open(name, FileMode::update);
      ASSERT_TRUE(file.has_value()) << file.error().message();
      const auto what = fmt::format("{} bytes at {}, skew {}, copy {}, cache {}", size, offset, skew,
                                    static_cast<int>(copy), static_cast<int>(cache));
      const Result<uint64_t> wrote =
          handle.write(*file, {.offset_bytes = offset, .source = source.source(), .copy = copy})->result();
      ASSERT_TRUE(wrote.has_value()) << what << ": " << wrote.error().message();
      EXPECT_EQ(*wrote, size) << what;
      const std::vector<std::byte> now = read_file(name);
      ASSERT_EQ(now.size(), size == 0 ? old_bytes : std::max(old_bytes, offset + size)) << what;
      for (uint64_t i = 0; i < now.size(); ++i) {
        const bool inside = i >= offset && i < offset + size;
        ASSERT_EQ(now[i], inside ? pattern_at(i) : kUntouched) << what << ": byte " << i;
      }
      drop_from_cache(name);
      const Memory target(kind, size, skew);
      const Transfer transfer =
          *handle.read(*file, {.offset_bytes = offset, .target = target.region(), .copy = copy, .cache = cache});
      const Result<uint64_t> read = transfer.result();
      ASSERT_TRUE(read.has_value()) << what << ": " << read.error().message();
      EXPECT_EQ(*read, size) << what;
      EXPECT_TRUE(target.holds(size, offset)) << what;
      EXPECT_TRUE(target.neighbours_untouched()) << what;
      const Route route = *transfer.route();
      EXPECT_EQ(route.direct_bytes + route.buffered_bytes, size) << what;
      if (cache == CacheMode::use) {
        EXPECT_EQ(route.direct_bytes, 0u) << what;
      }
    }
  }
}

TEST_P(IoConformance, TensOfMebibytesRoundTripWithTheDefaults) {
  constexpr uint64_t kBytes = 48 * kMiB + 12'345;
  for (const auto kind : {Memory::Kind::buffer, Memory::Kind::heap}) {
    Handle handle = make();
    const Memory source(kind, kBytes, 0);
    source.fill(0);
    const File file = *File::open(path("large"), FileMode::truncate);
    const Transfer write = *handle.write(file, {.source = source.source(), .durability = Durability::data});
    ASSERT_EQ(write.result().value(), kBytes);
    EXPECT_EQ(file_bytes(path("large")), kBytes);
    EXPECT_EQ(file.size_bytes().value(), kBytes);
    drop_from_cache(path("large"));
    const Memory target(kind, kBytes, 0);
    const Transfer read = *handle.read(file, {.target = target.region()});
    ASSERT_EQ(read.result().value(), kBytes);
    EXPECT_TRUE(target.holds(kBytes, 0));
    EXPECT_TRUE(target.neighbours_untouched());
    const bool expect_direct = on().direct;
    EXPECT_EQ(read.route()->direct_bytes, expect_direct ? kBytes : 0u) << read.route()->why;
    EXPECT_EQ(write.route()->direct_bytes, expect_direct ? kBytes / 4096 * 4096 : 0u) << write.route()->why;
    if (expect_direct && kind == Memory::Kind::buffer) {
      EXPECT_LT(read.route()->staged_bytes, 2 * 4096u) << "aligned memory on huge pages is not copied";
    }
    if (!expect_direct) {
      EXPECT_FALSE(read.route()->why.empty());
    }
    EXPECT_TRUE(handle.close().has_value());
  }
}

TEST_P(IoConformance, AFileMostlyInThePageCacheIsReadFromThere) {
  if (GetParam().stage == StageKind::overlay) GTEST_SKIP() << "overlayfs tells nobody what is cached of the file below";
  Handle handle = make();
  write_file(path("f"), pattern(4 * kMiB));
  const File file = *File::open(path("f"), FileMode::read);
  const Memory target(Memory::Kind::heap, 4 * kMiB, 0);
  const Transfer cached = *handle.read(file, {.target = target.region()});
  ASSERT_TRUE(cached.result().has_value());
  EXPECT_EQ(cached.route()->buffered_bytes, 4 * kMiB) << cached.route()->why;
  const Transfer bypassing = *handle.read(file, {.target = target.region(), .cache = CacheMode::bypass});
  ASSERT_TRUE(bypassing.result().has_value());
  EXPECT_EQ(bypassing.route()->direct_bytes, on().direct ? 4 * kMiB : 0u) << bypassing.route()->why;
  EXPECT_TRUE(target.holds(4 * kMiB, 0));
}

TEST_P(IoConformance, TenThousandRequestsPassThroughTheShallowestQueues) {
  constexpr uint64_t kPiece = 700;
  constexpr uint64_t kRequests = 10'000;
  write_file(path("in"), pattern(kPiece * kRequests));
  // Each depth on one file system; the others add nothing to that.
  const bool all = GetParam().stage == StageKind::build_tree;
  for (const uint32_t depth : all ? std::vector<uint32_t>{1, 2, 3} : std::vector<uint32_t>{2}) {
    Handle handle = make({.workers = 1, .block_bytes = 4096, .queue_depth = depth});
    const File in = *File::open(path("in"), FileMode::read);
    std::vector<std::byte> bytes(kPiece * kRequests);
    std::vector<Transfer> transfers;
    transfers.reserve(kRequests);
    if (depth == 2) {
      std::vector<ReadItem> items;
      for (uint64_t i = 0; i < kRequests; ++i)
        items.push_back(
            {.file = in, .request = {.offset_bytes = i * kPiece, .target = {bytes.data() + i * kPiece, kPiece, {}}}});
      transfers = *handle.read_many(items);
    } else {
      // Scattered, so that nothing is joined.
      for (uint64_t i = 0; i < kRequests; ++i) {
        const uint64_t place = i * 7919 % kRequests * kPiece;
        transfers.push_back(*handle.read(in, {.offset_bytes = place, .target = {bytes.data() + place, kPiece, {}}}));
      }
    }
    ASSERT_EQ(transfers.size(), kRequests);
    EXPECT_EQ(wait(transfers, WaitFor::all, std::chrono::seconds(120)), kRequests);
    for (const Transfer& transfer : transfers)
      ASSERT_EQ(transfer.result().value(), kPiece);
    EXPECT_EQ(bytes, pattern(kPiece * kRequests));
    const File out = *File::open(path("out"), FileMode::truncate);
    std::vector<WriteItem> items;
    for (uint64_t i = 0; i < kRequests; i += 10)
      items.push_back(
          {.file = out,
           .request = {.offset_bytes = i * kPiece, .source = {bytes.data() + i * kPiece, 10 * kPiece, {}}}});
    std::shuffle(items.begin(), items.end(), std::mt19937(depth));
    const std::vector<Transfer> writes = *handle.write_many(items);
    for (const Transfer& transfer : writes)
      ASSERT_EQ(transfer.result().value(), 10 * kPiece);
    EXPECT_EQ(read_file(path("out")), bytes);
  }
}

TEST_P(IoConformance, ColdFilesOfOneCallAreReadWithoutAHang) {
  Handle handle = make({.workers = 2, .block_bytes = 64 << 10});
  std::vector<ReadItem> items;
  std::vector<std::vector<std::byte>> targets(24, std::vector<std::byte>(300'001));
  for (size_t i = 0; i < targets.size(); ++i) {
    const std::string name = path(fmt::format("cold{}", i));
    write_file(name, pattern(300'001));
    drop_from_cache(name);
    items.push_back({.file = *File::open(name, FileMode::read),
                     .request = {.target = {targets[i].data(), 300'001, {}},
                                 .cache = i % 2 == 0 ? CacheMode::use : CacheMode::automatic}});
  }
  const std::vector<Transfer> transfers = *handle.read_many(items);
  EXPECT_EQ(wait(transfers, WaitFor::all, std::chrono::seconds(60)), transfers.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    EXPECT_EQ(transfers[i].result().value(), 300'001u);
    EXPECT_EQ(targets[i], pattern(300'001));
  }
}

TEST_P(IoConformance, GatherAndScatterKeepTheOrderOfTheRegions) {
  Handle handle = make({.workers = 2, .block_bytes = 16 << 10});
  std::mt19937 random(3);
  const Buffer buffer = *Buffer::create(2 * kMiB);
  std::vector<std::byte> heap(2 * kMiB);
  for (int round = 0; round < 10; ++round) {
    const uint64_t offset = random() % 10'000;
    std::vector<ConstRegion> sources;
    std::vector<Region> targets;
    std::vector<std::byte> second(2 * kMiB);
    uint64_t at = 0;
    while (at < kMiB) {
      const uint64_t bytes = random() % (random() % 4 == 0 ? 200'000 : 3000);
      std::byte* data = (random() % 2 == 0 ? buffer.data() : heap.data()) + at;
      for (uint64_t i = 0; i < bytes; ++i)
        data[i] = pattern_at(offset + at + i);
      sources.push_back({data, bytes, {}});
      targets.push_back({second.data() + at, bytes, {}});
      at += bytes;
    }
    const File file = *File::open(path("f"), FileMode::truncate);
    EXPECT_EQ(handle.write(file, {.offset_bytes = offset, .sources = sources})->result().value(), at);
    EXPECT_EQ(handle.read(file, {.offset_bytes = offset, .targets = targets})->result().value(), at);
    for (uint64_t i = 0; i < at; ++i)
      ASSERT_EQ(second[i], pattern_at(offset + i)) << "round " << round;
  }
}

TEST_P(IoConformance, TheEndOfAShortFileIsReportedWithWhatCame) {
  Handle handle = make({.workers = 2, .block_bytes = 64 << 10});
  for (const uint64_t bytes : {0u, 1u, 511u, 4096u, 5000u, 300'000u}) {
    write_file(path("short"), pattern(bytes));
    drop_from_cache(path("short"));
    const File file = *File::open(path("short"), FileMode::read);
    for (const uint64_t offset :
         {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{1} << 40, static_cast<uint64_t>(INT64_MAX) - (1 << 20)}) {
      const uint64_t there = offset < bytes ? bytes - offset : 0;
      const Memory target(Memory::Kind::buffer, 400'000, 0);
      const Result<uint64_t> failed = handle.read(file, {.offset_bytes = offset, .target = target.region()})->result();
      ASSERT_FALSE(failed.has_value());
      EXPECT_EQ(failed.error().code, ErrorCode::end_of_file) << failed.error().message();
      EXPECT_EQ(failed.error().transferred_bytes, there);
      EXPECT_EQ(failed.error().path, path("short"));
      EXPECT_TRUE(target.holds(there, offset));
      const Transfer counted =
          *handle.read(file, {.offset_bytes = offset, .target = target.region(), .end_of_file = EndOfFile::is_a_count});
      EXPECT_EQ(counted.result().value(), there);
    }
    // An offset beyond everything says nothing about the file: direct I/O still works on it.
    if (on().direct && bytes >= 4096) {
      const Memory target(Memory::Kind::buffer, 4096, 0);
      const Transfer again = *handle.read(file, {.target = target.region(), .cache = CacheMode::bypass});
      EXPECT_TRUE(again.result().has_value());
      EXPECT_EQ(again.route()->direct_bytes, 4096u) << again.route()->why;
    }
  }
}

TEST_P(IoConformance, RandomMixesAreAccountedForByteByByte) {
  constexpr uint64_t kFileBytes = 2 * kMiB + 77;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Handle handle =
        make({.workers = 2, .block_bytes = seed == 1 ? 4096U : 128U << 10, .queue_depth = seed == 2 ? 2U : 16U});
    write_file(path("in"), pattern(kFileBytes));
    write_file(path("out"), std::vector<std::byte>(2 * kMiB, kUntouched));
    drop_from_cache(path("in"));
    RandomLoad load(handle, {.seed = seed,
                             .read_file = *File::open(path("in"), FileMode::read),
                             .read_file_bytes = kFileBytes,
                             .write_file = *File::open(path("out"), FileMode::update),
                             .span_begin = 1000,
                             .span_bytes = 2 * kMiB - 3000,
                             .read_back = [name = path("out")](uint64_t offset, uint64_t length) {
                               return read_file(name, offset, length);
                             }});
    for (int batch = 0; batch < 8; ++batch)
      ASSERT_EQ(load.run_batch(), std::vector<std::string>()) << "batch " << batch;
    const std::vector<std::byte> now = read_file(path("out"));
    ASSERT_EQ(now.size(), 2 * kMiB);
    EXPECT_TRUE(std::all_of(now.begin(), now.begin() + 1000, [](std::byte byte) { return byte == kUntouched; }));
    EXPECT_TRUE(std::all_of(now.end() - 2000, now.end(), [](std::byte byte) { return byte == kUntouched; }));
  }
}

TEST_P(IoConformance, AReplacementAppearsWhole) {
  Handle handle = make();
  const Memory source(Memory::Kind::heap, 3 * kMiB + 5, 64);
  source.fill(0);
  write_file(path("f"), pattern(100));
  ASSERT_EQ(handle.replace(path("f"), {.source = source.source(), .durability = Durability::data})->result().value(),
            3 * kMiB + 5);
  EXPECT_EQ(read_file(path("f")), pattern(3 * kMiB + 5));
  EXPECT_EQ(folder_->entries(), 1u);
}

TEST_P(IoConformance, ADescriptorIsLeftAsItWas) {
  Handle handle = make();
  write_file(path("f"), pattern(100'000));
  const os::Fd mine(::open(path("f").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::lseek(mine.get(), 123, SEEK_SET), 123);
  const int flags = ::fcntl(mine.get(), F_GETFL);
  const Result<File> file = File::from_descriptor(mine.get());
  ASSERT_TRUE(file.has_value()) << file.error().message();
  std::vector<std::byte> target(50'000);
  EXPECT_EQ(handle.read(*file, {.offset_bytes = 7, .target = {target.data(), target.size(), {}}})->result().value(),
            50'000u);
  EXPECT_EQ(target[0], pattern_at(7));
  EXPECT_EQ(::lseek(mine.get(), 0, SEEK_CUR), 123);
  EXPECT_EQ(::fcntl(mine.get(), F_GETFL), flags);
  const os::Fd appending(::open(path("f").c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
  EXPECT_EQ(File::from_descriptor(appending.get()).error().errno_value, EINVAL);
}

TEST_P(IoConformance, DirectRequiredIsHonouredOrRefusedByName) {
  Handle handle = make({.direct = Ladder::required});
  write_file(path("f"), pattern(kMiB));
  const File file = *File::open(path("f"), FileMode::read);
  const Memory target(Memory::Kind::buffer, kMiB, 0);
  const Result<Transfer> transfer = handle.read(file, {.target = target.region()});
  if (GetParam().stage == StageKind::ramfs) {
    ASSERT_FALSE(transfer.has_value());
    EXPECT_EQ(transfer.error().code, ErrorCode::unavailable);
    EXPECT_FALSE(transfer.error().detail.empty());
    return;
  }
  ASSERT_TRUE(transfer.has_value()) << transfer.error().message();
  EXPECT_EQ(transfer->result().value(), kMiB);
  EXPECT_EQ(transfer->route()->direct_bytes, kMiB);
  EXPECT_TRUE(target.holds(kMiB, 0));
}

TEST_P(IoConformance, TheAlignmentIsTheDevicesOwn) {
  if (on().sector_bytes == 0 || !on().direct)
    GTEST_SKIP() << "the sector size of this file system is not known to the test";
  write_file(path("f"), pattern(kMiB));
  const File file = *File::open(path("f"), FileMode::read);
  EXPECT_EQ(file.direct_offset_alignment_bytes(), on().sector_bytes);
}

TEST_P(IoConformance, AThousandRoundsLeaveDescriptorsAndMemoryFlat) {
  Handle handle = make({.workers = 2});
  write_file(path("f"), pattern(200'000));
  size_t descriptors = 0;
  [[maybe_unused]] uint64_t memory = 0;
  for (int round = 0; round < 1000; ++round) {
    if (round == 100) {
      descriptors = open_descriptors();
      memory = resident_memory_bytes();
    }
    const File file = *File::open(path("f"), FileMode::update);
    std::vector<std::byte> bytes(100'000);
    const Transfer read = *handle.read(file, {.offset_bytes = 3, .target = {bytes.data(), bytes.size(), {}}});
    ASSERT_TRUE(read.result().has_value());
    const Transfer write = *handle.write(file, {.offset_bytes = 3, .source = {bytes.data(), bytes.size(), {}}});
    ASSERT_TRUE(write.result().has_value());
    ASSERT_FALSE(
        handle.read(file, {.offset_bytes = 199'000, .target = {bytes.data(), bytes.size(), {}}})->result().has_value());
    ASSERT_FALSE(File::open(path("missing"), FileMode::read).has_value());
    if (round % 10 == 0) {
      ASSERT_TRUE(handle.replace(path("g"), {.source = {bytes.data(), bytes.size(), {}}})->result().has_value());
    }
  }
  EXPECT_EQ(open_descriptors(), descriptors);
#if !defined(HEADRACE_SANITIZED)
  EXPECT_LT(resident_memory_bytes(), memory + 4 * kMiB);
#endif
}

std::vector<Place> places() {
  std::vector<Place> all;
  for (const StageKind kind :
       {StageKind::build_tree, StageKind::ext4_4096, StageKind::tmpfs, StageKind::ramfs, StageKind::overlay}) {
    for (const EngineKind engine : {EngineKind::posix, EngineKind::aio, EngineKind::uring})
      all.push_back({engine, kind});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Everywhere, IoConformance, testing::ValuesIn(places()), [](const auto& place) {
  return fmt::format("{}On{}", engine_name(place.param.engine), stage_name(place.param.stage));
});

}  // namespace
}  // namespace headrace
