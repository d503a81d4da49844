// SPDX-License-Identifier: Apache-2.0
// What tests of engines share: files on the build folder's own disk, aligned memory, and a loop that completes blocks.
// One thread, the owner of the engine under test.
// Every object owns what it makes and removes it.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/registry.h"
#include "os/fd.h"

namespace headrace::test {

using engine::Block;
using engine::Clock;
using engine::Completion;
using engine::Engine;
using engine::Operation;
using engine::Path;

// No test waits longer than this for anything: a lost completion is a failure, not a hang.
inline constexpr std::chrono::seconds kWatchdog{60};

// A folder below the current one, which is in the build tree: a real file system, not tmpfs.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::current_path() / "engine-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

  // tmpfs takes any alignment and never waits: tests of direct I/O prove nothing there.
  [[nodiscard]] bool on_tmpfs() const {
    constexpr long kTmpfsMagic = 0x01021994;
    struct statfs info = {};
    return ::statfs(path_.c_str(), &info) == 0 && info.f_type == kTmpfsMagic;
  }

 private:
  std::string path_;
};

// Page-aligned bytes with a content that depends on the seed and the place.
class Memory {
 public:
  explicit Memory(size_t bytes, uint8_t seed = 0) : bytes_(bytes) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
    fill(seed);
  }
  void fill(uint8_t seed) {
    for (size_t i = 0; i < bytes_; ++i)
      data_[i] = pattern(seed, i);
  }
  static std::byte pattern(uint8_t seed, size_t place) {
    return static_cast<std::byte>((place * 131 + (place >> 8) * 31 + seed) & 0xff);
  }
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] bool holds(uint8_t seed, size_t first, size_t count, size_t place) const {
    for (size_t i = 0; i < count; ++i) {
      if (data_[first + i] != pattern(seed, place + i)) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  size_t bytes_;
  std::unique_ptr<std::byte[], Free> data_;
};

inline os::Fd open_file(const std::string& path, int flags) {
  os::Fd file(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  EXPECT_TRUE(file.is_open()) << path << ": " << errno_name(errno);
  return file;
}

// A file whose byte at place i is Memory::pattern(seed, i).
inline std::string make_file(const TemporaryFolder& folder, size_t bytes, uint8_t seed = 0) {
  const std::string path = folder.file("data");
  const Memory content(bytes, seed);
  const os::Fd file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  EXPECT_EQ(::pwrite(file.get(), content.data(), bytes, 0), static_cast<ssize_t>(bytes));
  EXPECT_EQ(::fsync(file.get()), 0);
  return path;
}

using Results = std::map<uint64_t, int64_t>;

// Reaps until `count` completions came; each cookie must come once.
inline void reap_into(Engine& engine, Results& results, size_t count) {
  const Clock::time_point deadline = Clock::now() + kWatchdog;
  std::array<Completion, 8> done = {};
  while (count > 0) {
    const size_t got = engine.reap(std::span(done).first(std::min(done.size(), count)), deadline);
    for (const Completion& completion : std::span(done).first(got)) {
      EXPECT_TRUE(results.emplace(completion.cookie, completion.result).second) << completion.cookie;
    }
    count -= got;
    if (count > 0 && Clock::now() >= deadline) {
      ADD_FAILURE() << count << " completions never came";
      return;
    }
  }
}

// Submits all blocks, as many as the engine takes at a time, and reaps them all.
inline Results complete(Engine& engine, std::span<const Block> blocks) {
  Results results;
  size_t in_flight = 0;
  while (!blocks.empty()) {
    const size_t accepted = engine.submit(blocks);
    EXPECT_LE(accepted, blocks.size());
    in_flight += accepted;
    EXPECT_LE(in_flight, engine.caps().depth);
    blocks = blocks.subspan(accepted);
    if (accepted > 0) continue;
    if (in_flight == 0) {
      ADD_FAILURE() << "the engine takes nothing although nothing is in flight";
      return results;
    }
    const size_t before = results.size();
    reap_into(engine, results, 1);
    if (results.size() == before) return results;
    --in_flight;
  }
  reap_into(engine, results, in_flight);
  return results;
}

inline int64_t complete_one(Engine& engine, const Block& block) {
  const Results results = complete(engine, {&block, 1});
  const auto found = results.find(block.cookie);
  return found == results.end() ? INT64_MIN : found->second;
}

inline std::string kind_name(const testing::TestParamInfo<EngineKind>& info) {
  return std::string(engine_name(info.param));
}

}  // namespace headrace::test
