// SPDX-License-Identifier: Apache-2.0
// Files opened, listed, read and verified; and damaged in every byte, which must never be taken for good or break anything.
// One thread beside the handles'.
// Owns the files it makes.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <headrace/checkpoint.h>

#include "tests/support/sim_world.h"

namespace headrace {
namespace {

using namespace headrace::test;

constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Model {
  std::vector<std::vector<std::byte>> data;
  std::vector<std::string> names;
  std::vector<std::vector<uint64_t>> shapes;

  explicit Model(const std::vector<uint64_t>& float_counts) {
    std::mt19937_64 random(3);
    for (const uint64_t count : float_counts) {
      std::vector<std::byte>& bytes = data.emplace_back(count * 4);
      for (std::byte& byte : bytes)
        byte = static_cast<std::byte>(random());
      names.push_back("layer." + std::to_string(names.size()));
      shapes.push_back({count});
    }
  }
  [[nodiscard]] std::vector<NamedTensor> tensors() const {
    std::vector<NamedTensor> all;
    for (size_t i = 0; i < data.size(); ++i)
      all.push_back({.name = names[i],
                     .dtype = DType::float32,
                     .shape = shapes[i],
                     .data = {data[i].data(), data[i].size(), {}}});
    return all;
  }
};

std::vector<uint32_t> all_of(const CheckpointFile& file) {
  std::vector<uint32_t> all(file.storages().size());
  for (uint32_t i = 0; i < all.size(); ++i)
    all[i] = i;
  return all;
}

enum class Format : uint8_t { torch, safetensors };
Result<uint64_t> save(World& world, Format format, const Model& model, const std::string& path = "/m") {
  const std::vector<NamedTensor> tensors = model.tensors();
  return format == Format::torch ? save_torch(world.handle, path, tensors)
                                 : save_safetensors(world.handle, path, tensors, Metadata{{"k", "v"}});
}

class CheckpointFileOf : public testing::TestWithParam<Format> {};

TEST_P(CheckpointFileOf, TellsWhatIsInItAndLoadsIt) {
  World world({}, {.workers = 2, .block_bytes = 256 << 10});
  const FileSystemInPlace in_place(world.system);
  const Model model({7, 0, 300'000, 1, 9 * kMiB, 50'000, 2'000'000});
  ASSERT_TRUE(save(world, GetParam(), model).has_value());
  const CheckpointFile file = *CheckpointFile::open(world.handle, "/m");
  EXPECT_EQ(file.format(), GetParam() == Format::torch ? CheckpointFormat::torch_zip : CheckpointFormat::safetensors);
  EXPECT_EQ(file.metadata().has_value(), GetParam() == Format::safetensors);
  EXPECT_EQ(file.file_bytes(), world.system.bytes_of("/m").size());
  ASSERT_EQ(file.tensors().size(), model.data.size());
  for (const Verify verify : {Verify::automatic, Verify::off}) {
    const Result<LoadedStorages> loaded = file.load(world.handle, all_of(file), {.verify = verify});
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
    for (const StoredTensor& tensor : file.tensors()) {
      const auto i = static_cast<size_t>(std::ranges::find(model.names, tensor.name) - model.names.begin());
      ASSERT_LT(i, model.names.size()) << tensor.name;
      EXPECT_EQ(tensor.dtype, DType::float32);
      EXPECT_EQ(tensor.shape, model.shapes[i]);
      EXPECT_EQ(tensor.bytes, model.data[i].size());
      const LoadedBytes& bytes = loaded->storages[tensor.storage];
      ASSERT_EQ(bytes.bytes, model.data[i].size());
      EXPECT_TRUE(bytes.bytes == 0 || std::memcmp(bytes.data, model.data[i].data(), bytes.bytes) == 0) << tensor.name;
    }
    // Everything but what is larger than 32 MiB shares one block, and none of it is pinned or locked.
    EXPECT_EQ(loaded->memory.size(), 3u);
    EXPECT_FALSE(loaded->memory[0].locked());
  }
}

TEST_P(CheckpointFileOf, ReadsIntoMemoryGivenWholeAndInPart) {
  World world({}, {.workers = 2, .block_bytes = 64 << 10});
  const FileSystemInPlace in_place(world.system);
  const Model model({300'000, 5, 70'000});
  ASSERT_TRUE(save(world, GetParam(), model).has_value());
  const CheckpointFile file = *CheckpointFile::open(world.handle, "/m");
  std::vector<std::byte> whole(1'200'000);
  std::vector<std::byte> part(1001);
  const auto storage_of = [&](const std::string& name) {
    return std::ranges::find(file.tensors(), name, &StoredTensor::name)->storage;
  };
  const std::vector<StorageRead> reads = {
      {storage_of("layer.0"), 0, {whole.data(), whole.size(), {}}},
      {storage_of("layer.2"), 777, {part.data(), part.size(), {}}},
  };
  const Status read = file.read(world.handle, reads);
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(whole, model.data[0]);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), model.data[2].begin() + 777));
  const std::vector<StorageRead> outside = {{storage_of("layer.1"), 1, {part.data(), 20, {}}}};
  EXPECT_EQ(file.read(world.handle, outside).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(file.read(world.handle, reads, {.verify = Verify::require}).error().code, ErrorCode::unavailable);
}

INSTANTIATE_TEST_SUITE_P(Formats, CheckpointFileOf, testing::Values(Format::torch, Format::safetensors),
                         [](const auto& format) { return format.param == Format::torch ? "Torch" : "Safetensors"; });

TEST(CheckpointFile, AFlippedBitIsToldWithTensorRecordAndOffset) {
  World world;
  const FileSystemInPlace in_place(world.system);
  const Model model({300'000, 5, 70'000});
  ASSERT_TRUE(save(world, Format::torch, model).has_value());
  std::vector<std::byte> bytes = world.system.bytes_of("/m");
  const uint64_t begin = CheckpointFile::open(world.handle, "/m")->storages()[2].offset_bytes;
  bytes[begin + 1234] ^= std::byte{16};
  world.system.put("/m", bytes);
  const CheckpointFile file = *CheckpointFile::open(world.handle, "/m");
  const Result<LoadedStorages> loaded = file.load(world.handle, all_of(file));
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().code, ErrorCode::corrupt);
  EXPECT_EQ(loaded.error().offset_bytes, begin);
  for (const char* part : {"layer.2", "m/data/2", "CRC-32"})
    EXPECT_NE(loaded.error().message().find(part), std::string::npos) << loaded.error().message();
  EXPECT_TRUE(file.load(world.handle, all_of(file), {.verify = Verify::off}).has_value());
}

// Every byte of a small file, one after another: an error, or the very same data (names and hashes are not compared).
TEST(CheckpointFile, NoDamagedByteOfAZipIsTakenForData) {
  World world;
  const FileSystemInPlace in_place(world.system);
  const Model model({3, 5});
  const std::vector<NamedTensor> tensors = model.tensors();
  ASSERT_TRUE(save_torch(world.handle, "/m", tensors, {.alignment_bytes = 64}).has_value());
  const std::vector<std::byte> good = world.system.bytes_of("/m");
  uint32_t refused = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bytes = good;
    bytes[at] ^= std::byte{0x41};
    world.system.put("/m", bytes);
    const Result<CheckpointFile> file = CheckpointFile::open(world.handle, "/m");
    if (!file) {
      ++refused;
      continue;
    }
    const Result<LoadedStorages> loaded = file->load(world.handle, all_of(*file));
    if (!loaded) {
      ++refused;
      continue;
    }
    for (size_t i = 0; i < file->storages().size() && file->storages()[i].crc32; ++i) {
      const LoadedBytes& one = loaded->storages[i];
      EXPECT_TRUE(std::equal(one.data, one.data + one.bytes, model.data[i].begin(), model.data[i].end())) << at;
    }
  }
  EXPECT_GT(refused, good.size() / 4);
}

TEST(CheckpointFile, FilesCutShortAndOthersAreRefused) {
  World world;
  const FileSystemInPlace in_place(world.system);
  for (const Format format : {Format::torch, Format::safetensors}) {
    ASSERT_TRUE(save(world, format, Model({3, 5})).has_value());
    const std::vector<std::byte> good = world.system.bytes_of("/m");
    for (size_t bytes = 0; bytes < good.size(); bytes += 13) {
      world.system.put("/m", {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes)});
      const Result<CheckpointFile> file = CheckpointFile::open(world.handle, "/m");
      ASSERT_FALSE(file.has_value()) << bytes;
      EXPECT_EQ(file.error().code, ErrorCode::corrupt) << file.error().message();
      EXPECT_EQ(file.error().path, "/m");
    }
  }
  EXPECT_EQ(CheckpointFile::open(world.handle, "/missing").error().errno_value, ENOENT);
}

TEST(CheckpointFile, RequiredSumsAreRefusedWhereThereAreNone) {
  World world;
  const FileSystemInPlace in_place(world.system);
  ASSERT_TRUE(save(world, Format::safetensors, Model({3})).has_value());
  EXPECT_EQ(CheckpointFile::open(world.handle, "/m", {.verify = Verify::require}).error().code, ErrorCode::unavailable);
  ASSERT_TRUE(save(world, Format::torch, Model({3})).has_value());
  const CheckpointFile file = *CheckpointFile::open(world.handle, "/m", {.verify = Verify::require});
  EXPECT_TRUE(file.load(world.handle, all_of(file), {.verify = Verify::require}).has_value());
}

}  // namespace
}  // namespace headrace
