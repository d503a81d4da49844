// SPDX-License-Identifier: Apache-2.0
// Files that save_*() makes, read back byte by byte: on the simulated disk with every mix of sizes, on the real one too.
// One thread beside the handles'.
// Owns the files it makes.
#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <headrace/checkpoint.h>

#include "base/crc32.h"
#include "format/torch_zip_reader.h"
#include "tests/support/files.h"
#include "tests/support/sim_world.h"

namespace headrace {
namespace {

using namespace headrace::test;
using namespace headrace::format;

struct Contents {
  std::string pickle;
  std::vector<std::vector<std::byte>> storages;

  [[nodiscard]] std::vector<ConstRegion> regions() const {
    std::vector<ConstRegion> all;
    for (const std::vector<std::byte>& storage : storages)
      all.push_back({storage.data(), storage.size(), {}});
    return all;
  }
};

Contents contents_of(std::span<const uint64_t> sizes, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  Contents contents;
  contents.pickle.resize(200 + random() % 5000, 'p');
  for (const uint64_t size : sizes) {
    std::vector<std::byte>& storage = contents.storages.emplace_back(size);
    for (std::byte& byte : storage)
      byte = static_cast<std::byte>(random());
  }
  return contents;
}

// Every record of the archive against `contents`, and every sum.
void expect_archive(std::span<const std::byte> file, const Contents& contents, uint32_t alignment) {
  const Result<ZipDirectory> directory =
      find_zip_directory(file.last(std::min<size_t>(file.size(), kZipTailBytesMax)), file.size());
  ASSERT_TRUE(directory.has_value()) << directory.error().message();
  const Result<std::vector<ZipEntry>> entries =
      parse_zip_directory(file.subspan(directory->begin, directory->bytes), *directory);
  ASSERT_TRUE(entries.has_value()) << entries.error().message();
  const Result<TorchZipContents> archive = torch_zip_contents_of(*entries);
  ASSERT_TRUE(archive.has_value()) << archive.error().message();
  ASSERT_EQ(archive->storages.size(), contents.storages.size());
  for (const ZipEntry& entry : *entries) {
    const Result<uint64_t> begin = zip_data_begin(entry, file.subspan(entry.header_begin));
    ASSERT_TRUE(begin.has_value()) << begin.error().message();
    EXPECT_EQ(base::crc32(file.subspan(*begin, entry.bytes)), entry.sum) << entry.name;
    EXPECT_EQ(*begin % alignment, 0u) << entry.name;
  }
  for (size_t i = 0; i < contents.storages.size(); ++i) {
    const ZipEntry& entry = (*entries)[*archive->find_storage(*entries, fmt::format("{}", i))];
    const uint64_t begin = *zip_data_begin(entry, file.subspan(entry.header_begin));
    EXPECT_TRUE(std::ranges::equal(file.subspan(begin, entry.bytes), contents.storages[i])) << entry.name;
  }
  const ZipEntry& pickle = (*entries)[archive->pickle];
  const uint64_t begin = *zip_data_begin(pickle, file.subspan(pickle.header_begin));
  EXPECT_TRUE(std::ranges::equal(file.subspan(begin, pickle.bytes), std::as_bytes(std::span(contents.pickle))));
}

constexpr uint64_t kKiB = 1024;

TEST(SaveTorchZip, EveryMixOfSizesIsAWholeArchive) {
  const std::vector<std::vector<uint64_t>> mixes = {
      {},
      {0},
      {1},
      {64 * kKiB},
      {64 * kKiB + 1},
      {1'000'000},
      {300 * kKiB, 300 * kKiB},
      {0, 300 * kKiB, 0, 5, 128 * kKiB, 4, 0},
      {300 * kKiB + 17, 1, 2, 3, 9'000, 70'000, 200'001, 12},
      {80 * kKiB, 120 * kKiB, 4095, 4097, 160 * kKiB - 1, 160 * kKiB + 1},
  };
  for (const uint32_t alignment : {64U, 4096U, 32768U}) {
    for (const std::vector<uint64_t>& mix : mixes) {
      for (const uint64_t block : {64 * kKiB, 1024 * kKiB}) {
        World world({}, {.workers = 2, .block_bytes = block});
        const FileSystemInPlace in_place(world.system);
        const Contents contents = contents_of(mix);
        const Result<uint64_t> saved =
            save_torch_zip(world.handle, "/m.pt", {.pickle = contents.pickle, .storages = contents.regions()},
                           {.alignment_bytes = alignment});
        ASSERT_TRUE(saved.has_value()) << saved.error().message();
        const std::vector<std::byte> file = world.system.bytes_of("/m.pt");
        EXPECT_EQ(file.size(), *saved);
        expect_archive(file, contents, alignment);
      }
    }
  }
}

TEST(SaveTorchZip, RandomMixesOnARoughDisk) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<uint64_t> sizes(random() % 40);
    for (uint64_t& size : sizes)
      size = random() % (uint64_t{1} << (1 + random() % 19));
    World world({.seed = seed, .chances = {.short_transfer = 100, .interrupted = 50, .try_again = 20, .full = 50}},
                {.workers = static_cast<uint32_t>(1 + seed % 3), .block_bytes = 64 * kKiB});
    const FileSystemInPlace in_place(world.system);
    const Contents contents = contents_of(sizes, seed);
    const uint32_t alignment = 64U << (seed % 8);
    const Result<uint64_t> saved =
        save_torch_zip(world.handle, "/m.pt", {.pickle = contents.pickle, .storages = contents.regions()},
                       {.alignment_bytes = alignment});
    ASSERT_TRUE(saved.has_value()) << saved.error().message();
    expect_archive(world.system.bytes_of("/m.pt"), contents, alignment);
  }
}

TEST(SaveTorchZip, WhateverStepFailsTheOldFileOrTheNewIsThere) {
  const Contents contents = contents_of(std::vector<uint64_t>{300 * kKiB, 5, 128 * kKiB, 700});
  const std::vector<std::byte> old(5000, std::byte{1});
  for (const int errno_value : {EIO, ENOSPC, EACCES}) {
    size_t runs = 0;
    for (bool failed_somewhere = true; failed_somewhere; ++runs) {
      ASSERT_LT(runs, 50u);
      World world;
      const FileSystemInPlace in_place(world.system);
      world.system.put("/m.pt", old);
      world.system.faults.fail(runs, errno_value);
      const Result<uint64_t> saved =
          save_torch_zip(world.handle, "/m.pt", {.pickle = contents.pickle, .storages = contents.regions()});
      failed_somewhere = world.system.faults.failed().has_value();
      const std::string step = world.system.faults.failed().value_or("none");
      const std::vector<std::byte> now = world.system.bytes_of("/m.pt");
      if (now != old) expect_archive(now, contents, 4096);
      if (saved) {
        EXPECT_NE(now, old) << step;
      } else {
        EXPECT_EQ(saved.error().errno_value, errno_value) << step << ": " << saved.error().message();
        EXPECT_EQ(saved.error().path, "/m.pt") << step;
      }
      EXPECT_EQ(world.system.all_names(), std::vector<std::string>{"/m.pt"}) << step;
    }
    EXPECT_GT(runs, 5u);
  }
}

TEST(SaveTorchZip, AWriteThatFailsLeavesTheOldFile) {
  const Contents contents = contents_of(std::vector<uint64_t>{300 * kKiB, 5, 128 * kKiB, 700});
  const std::vector<std::byte> old(5000, std::byte{1});
  bool failed_somewhere = true;
  for (int fail_at = 0; failed_somewhere; ++fail_at) {
    ASSERT_LT(fail_at, 100);
    World world({}, {.workers = 1, .block_bytes = 64 * kKiB});
    const FileSystemInPlace in_place(world.system);
    world.system.put("/m.pt", old);
    const auto calls = std::make_shared<int>(0);
    world.disk.set_script([calls, fail_at](const SimIo&) -> std::optional<int64_t> {
      return (*calls)++ >= fail_at ? std::optional<int64_t>(-ENOSPC) : std::nullopt;
    });
    const Result<uint64_t> saved =
        save_torch_zip(world.handle, "/m.pt", {.pickle = contents.pickle, .storages = contents.regions()});
    failed_somewhere = !saved.has_value();
    if (saved) {
      expect_archive(world.system.bytes_of("/m.pt"), contents, 4096);
    } else {
      EXPECT_EQ(saved.error().errno_value, ENOSPC);
      EXPECT_NE(saved.error().message().find("old file"), std::string::npos) << saved.error().message();
      EXPECT_EQ(world.system.bytes_of("/m.pt"), old);
    }
    EXPECT_EQ(world.system.all_names(), std::vector<std::string>{"/m.pt"});
  }
}

TEST(SaveTorchZip, InterruptedItLeavesTheOldFile) {
  const Contents contents = contents_of(std::vector<uint64_t>{3000 * kKiB});
  World world({}, {.workers = 1, .block_bytes = 64 * kKiB});
  const FileSystemInPlace in_place(world.system);
  world.system.put("/m.pt", std::vector<std::byte>(10));
  world.disk.hold();
  const Result<uint64_t> saved = save_torch_zip(
      world.handle, "/m.pt", {.pickle = contents.pickle, .storages = contents.regions()}, {.interrupted = [&] {
        world.disk.release();
        return true;
      }});
  ASSERT_FALSE(saved.has_value());
  EXPECT_EQ(saved.error().code, ErrorCode::interrupted);
  EXPECT_EQ(world.system.bytes_of("/m.pt").size(), 10u);
  EXPECT_EQ(world.system.all_names(), std::vector<std::string>{"/m.pt"});
}

// Storages as memory of a device that the host cannot read: at addresses that no process has.
class FakeDevice {
 public:
  explicit FakeDevice(const std::vector<std::vector<std::byte>>& storages) : storages_(&storages) {}

  // Every third one stays on the host.
  [[nodiscard]] std::vector<ConstRegion> regions() const {
    std::vector<ConstRegion> all;
    for (size_t i = 0; i < storages_->size(); ++i) {
      const std::vector<std::byte>& storage = (*storages_)[i];
      if (i % 3 == 2) {
        all.push_back({storage.data(), storage.size(), {}});
      } else {
        all.push_back({reinterpret_cast<const std::byte*>(kBegin + i * kStride),
                       storage.size(),
                       {.kind = DeviceKind::cuda, .index = 0}});
      }
    }
    return all;
  }

  DeviceCopy copy_through(Buffer& buffer) {
    const std::span staging(buffer.data(), buffer.bytes());
    return {.copy = [this, staging](const ConstRegion& source, std::span<std::byte> target) -> Status {
              EXPECT_GE(target.data(), staging.data());
              EXPECT_LE(target.data() + target.size(), staging.data() + staging.size());
              EXPECT_EQ(source.bytes, target.size());
              if (copies_++ == fail_at)
                return std::unexpected(Error{.errno_value = EIO, .operation = "copy", .detail = "the device is gone"});
              const uint64_t address = reinterpret_cast<uintptr_t>(source.data) - kBegin;
              const std::vector<std::byte>& storage = (*storages_)[address / kStride];
              std::copy_n(storage.begin() + static_cast<ptrdiff_t>(address % kStride), target.size(), target.begin());
              return {};
            },
            .staging = staging};
  }

  size_t fail_at = SIZE_MAX;

 private:
  static constexpr uint64_t kBegin = uint64_t{1} << 63;
  static constexpr uint64_t kStride = uint64_t{1} << 40;
  const std::vector<std::vector<std::byte>>* storages_;
  size_t copies_ = 0;
};

constexpr uint64_t kStagingBytes = 512 * kKiB;

TEST(SaveFromADevice, EveryMixOfSizesIsTheFileOfTheHost) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<uint64_t> sizes(random() % 20);
    for (uint64_t& size : sizes)
      size = random() % (uint64_t{1} << (1 + random() % 20));
    const Contents contents = contents_of(sizes, seed);
    const uint32_t alignment = 64U << (seed % 8);
    std::vector<std::string> keys;
    for (size_t i = 0; i < sizes.size(); ++i)
      keys.push_back(fmt::format("{}", i));
    const auto files = [&](std::span<const ConstRegion> regions, const DeviceCopy& copy) {
      std::vector<TorchLegacyStorage> storages;
      std::vector<NamedTensor> tensors;
      std::vector<std::array<uint64_t, 1>> shapes(regions.size());
      for (size_t i = 0; i < regions.size(); ++i) {
        storages.push_back({.key = keys[i], .element_count = regions[i].bytes, .data = regions[i]});
        shapes[i] = {regions[i].bytes};
        tensors.push_back({.name = keys[i], .dtype = DType::uint8, .shape = shapes[i], .data = regions[i]});
      }
      World world({.seed = seed, .chances = {.short_transfer = 100, .interrupted = 50, .try_again = 20, .full = 50}},
                  {.workers = static_cast<uint32_t>(1 + seed % 3), .block_bytes = 64 * kKiB});
      const FileSystemInPlace in_place(world.system);
      const SaveOptions options = {.alignment_bytes = alignment, .device_copy = copy};
      for (const Result<uint64_t>& saved :
           {save_torch_zip(world.handle, "/m.pt", {.pickle = contents.pickle, .storages = regions}, options),
            save_torch_legacy(world.handle, "/m.bin", contents.pickle, storages, options),
            save_safetensors(world.handle, "/m.safetensors", tensors, std::nullopt, options)})
        EXPECT_TRUE(saved.has_value()) << saved.error().message();
      return std::array{world.system.bytes_of("/m.pt"), world.system.bytes_of("/m.bin"),
                        world.system.bytes_of("/m.safetensors")};
    };
    Buffer staging = buffer_of(kStagingBytes + random() % 3 * 100'000, std::byte{0xAA});
    FakeDevice device(contents.storages);
    const auto from_device = files(device.regions(), device.copy_through(staging));
    const auto from_host = files(contents.regions(), {});
    expect_archive(from_device[0], contents, alignment);
    EXPECT_EQ(from_device[1], from_host[1]) << seed;
    EXPECT_EQ(from_device[2], from_host[2]) << seed;
  }
}

TEST(SaveFromADevice, WhicheverCopyFailsTheOldFileStays) {
  const Contents contents = contents_of(std::vector<uint64_t>{900 * kKiB, 5, 128 * kKiB, 700, 300 * kKiB + 3});
  const std::vector<std::byte> old(5000, std::byte{1});
  Buffer staging = buffer_of(kStagingBytes);
  bool failed = true;
  size_t runs = 0;
  for (; failed; ++runs) {
    ASSERT_LT(runs, 100u);
    World world({}, {.workers = 1, .block_bytes = 64 * kKiB});
    const FileSystemInPlace in_place(world.system);
    world.system.put("/m.pt", old);
    FakeDevice device(contents.storages);
    device.fail_at = runs;
    const Result<uint64_t> saved =
        save_torch_zip(world.handle, "/m.pt", {.pickle = contents.pickle, .storages = device.regions()},
                       {.device_copy = device.copy_through(staging)});
    failed = !saved.has_value();
    if (saved) {
      expect_archive(world.system.bytes_of("/m.pt"), contents, 4096);
    } else {
      EXPECT_EQ(saved.error().errno_value, EIO);
      EXPECT_NE(saved.error().message().find("the device is gone; the old file"), std::string::npos)
          << saved.error().message();
      EXPECT_EQ(world.system.bytes_of("/m.pt"), old);
    }
    EXPECT_EQ(world.system.all_names(), std::vector<std::string>{"/m.pt"});
  }
  EXPECT_GT(runs, 10u);
}

TEST(SaveFromADevice, AWriteThatFailsMeanwhileLeavesTheOldFile) {
  const Contents contents = contents_of(std::vector<uint64_t>{3000 * kKiB});
  const std::vector<std::byte> old(5000, std::byte{1});
  Buffer staging = buffer_of(kStagingBytes);
  bool failed = true;
  for (int fail_at = 0; failed; ++fail_at) {
    ASSERT_LT(fail_at, 200);
    World world({}, {.workers = 1, .block_bytes = 64 * kKiB});
    const FileSystemInPlace in_place(world.system);
    world.system.put("/m.pt", old);
    const auto calls = std::make_shared<int>(0);
    world.disk.set_script([calls, fail_at](const SimIo&) -> std::optional<int64_t> {
      return (*calls)++ == fail_at ? std::optional<int64_t>(-EIO) : std::nullopt;
    });
    FakeDevice device(contents.storages);
    const Result<uint64_t> saved =
        save_torch_zip(world.handle, "/m.pt", {.pickle = contents.pickle, .storages = device.regions()},
                       {.device_copy = device.copy_through(staging)});
    failed = !saved.has_value();
    if (!saved) {
      EXPECT_EQ(saved.error().errno_value, EIO);
      EXPECT_EQ(world.system.bytes_of("/m.pt"), old);
    }
    EXPECT_EQ(world.system.all_names(), std::vector<std::string>{"/m.pt"});
  }
}

TEST(SaveFromADevice, WithoutAWayToCopyOrWithTooLittleStagingItIsRefused) {
  const Contents contents = contents_of(std::vector<uint64_t>{300 * kKiB});
  World world;
  const FileSystemInPlace in_place(world.system);
  FakeDevice device(contents.storages);
  Buffer staging = buffer_of(16 * kKiB);
  for (const DeviceCopy& copy : {DeviceCopy{}, device.copy_through(staging)}) {
    const Result<uint64_t> saved = save_torch_zip(
        world.handle, "/m.pt", {.pickle = contents.pickle, .storages = device.regions()}, {.device_copy = copy});
    ASSERT_FALSE(saved.has_value());
    EXPECT_EQ(saved.error().code, ErrorCode::invalid_argument) << saved.error().message();
    EXPECT_NE(saved.error().message().find("device_copy"), std::string::npos) << saved.error().message();
    EXPECT_EQ(world.system.all_names(), std::vector<std::string>());
  }
}

}  // namespace
}  // namespace headrace
