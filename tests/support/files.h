// SPDX-License-Identifier: Apache-2.0
// Folders and files on the real file system, and what the process holds: descriptors, memory.
// One thread.
// A folder is removed with everything in it, unless it belongs to a process that forked this one.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "os/fd.h"

namespace headrace::test {

class TestFolder {
 public:
  // Below the current folder, which ctest puts in the build tree: a real file system.
  TestFolder() : TestFolder(std::filesystem::current_path().string()) {}
  explicit TestFolder(const std::string& parent) {
    std::string pattern = parent + "/headrace-test-XXXXXX";
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
    EXPECT_FALSE(path_.empty()) << parent;
    (void)::chmod(path_.c_str(), 0755);
  }
  ~TestFolder() {
    std::error_code ignored;
    if (!path_.empty() && process_ == ::getpid()) std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] size_t entries() const {
    using std::filesystem::directory_iterator;
    return static_cast<size_t>(std::distance(directory_iterator(path_), directory_iterator()));
  }

 private:
  std::string path_;
  pid_t process_ = ::getpid();
};

inline void write_file(const std::string& path, const std::vector<std::byte>& bytes) {
  const os::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  EXPECT_TRUE(file.is_open()) << path;
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    ASSERT_GT(count, 0) << path;
    done += static_cast<size_t>(count);
  }
}

// Up to `length` bytes from `offset`.
inline std::vector<std::byte> read_file(const std::string& path, uint64_t offset = 0, uint64_t length = UINT64_MAX) {
  const os::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) return {};
  const auto size = static_cast<uint64_t>(status.st_size);
  std::vector<std::byte> bytes(offset >= size ? 0 : std::min(length, size - offset));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        ::pread(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

inline uint64_t file_bytes(const std::string& path) {
  std::error_code ignored;
  const uintmax_t size = std::filesystem::file_size(path, ignored);
  return ignored ? UINT64_MAX : size;
}

// Writes the file's dirty pages out and takes all of them from the page cache.
inline void drop_from_cache(const std::string& path) {
  const os::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  (void)::fdatasync(file.get());
  (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

inline size_t open_descriptors() {
  using std::filesystem::directory_iterator;
  return static_cast<size_t>(std::distance(directory_iterator("/proc/self/fd"), directory_iterator()));
}

inline uint64_t resident_memory_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace headrace::test
