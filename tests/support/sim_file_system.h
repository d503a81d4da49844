// SPDX-License-Identifier: Apache-2.0
// Two file systems for tests: one whose files are a SimDisk's, and the real one, both with operations that fail on demand.
// Any thread, as os::FileSystem.
// Descriptors are real ones (of /dev/null on the simulated file system), so that leaks of them can be counted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <headrace/handle.h>

#include "os/file_system.h"
#include "tests/support/fault_plan.h"
#include "tests/support/sim_disk.h"

namespace headrace::test {

class SimFileSystem final : public os::FileSystem {
 public:
  explicit SimFileSystem(SimDisk& disk) : disk_(disk) {}

  FaultPlan faults;
  bool refuses_direct_open = false;
  std::optional<uint64_t> resident;  // answered to every question about the page cache
  uint32_t block_bytes = 4096;

  // A file of this content under this name.
  std::shared_ptr<SimFile> put(const std::string& path, std::vector<std::byte> bytes);
  [[nodiscard]] std::shared_ptr<SimFile> get(const std::string& path);
  [[nodiscard]] std::vector<std::byte> bytes_of(const std::string& path);
  // Of every file there is, sorted.
  [[nodiscard]] std::vector<std::string> all_names();
  [[nodiscard]] size_t files();

  [[nodiscard]] Result<os::OpenedFile> open(const std::string& path, FileMode mode) override;
  [[nodiscard]] Result<os::OpenedFile> duplicate(int descriptor) override;
  [[nodiscard]] Result<os::Fd> reopen_direct(const os::OpenedFile& file) override;
  [[nodiscard]] os::DirectAlignment direct_alignment(int descriptor) override;
  [[nodiscard]] std::optional<uint64_t> resident_bytes(int descriptor, uint64_t offset, uint64_t length) override;
  [[nodiscard]] Result<uint64_t> size_bytes(int descriptor, const std::string& path) override;
  [[nodiscard]] Result<os::OpenedFile> create_exclusive(const std::string& path, uint32_t mode) override;
  [[nodiscard]] Status allocate(int descriptor, uint64_t bytes, const std::string& path) override;
  void grow(int descriptor, uint64_t bytes, uint32_t unit_bytes) override;
  [[nodiscard]] Status truncate(int descriptor, uint64_t bytes, const std::string& path) override;
  [[nodiscard]] Status take_permissions(int descriptor, const std::string& old, const std::string& path) override;
  [[nodiscard]] Status datasync(int descriptor, const std::string& path) override;
  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status rename_new(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status unlink(const std::string& path) override;
  [[nodiscard]] Status sync_folder_of(const std::string& path) override;
  [[nodiscard]] uint64_t data_end(int descriptor, uint64_t from, uint64_t to) override;
  [[nodiscard]] bool names(const std::string& path, int descriptor, os::Links links) override;

 private:
  [[nodiscard]] Status step(const char* name, const std::string& path);
  [[nodiscard]] os::OpenedFile opened(const std::string& path, std::shared_ptr<SimFile> file);

  SimDisk& disk_;
  std::map<std::string, std::shared_ptr<SimFile>> names_;  // guarded by the disk's mutex
};

class FaultyFileSystem final : public os::FileSystem {
 public:
  FaultPlan faults;

  [[nodiscard]] Result<os::OpenedFile> open(const std::string& path, FileMode mode) override;
  [[nodiscard]] Result<os::Fd> reopen_direct(const os::OpenedFile& file) override;
  [[nodiscard]] Result<uint64_t> size_bytes(int descriptor, const std::string& path) override;
  [[nodiscard]] Result<os::OpenedFile> create_exclusive(const std::string& path, uint32_t mode) override;
  [[nodiscard]] Status allocate(int descriptor, uint64_t bytes, const std::string& path) override;
  [[nodiscard]] Status truncate(int descriptor, uint64_t bytes, const std::string& path) override;
  [[nodiscard]] Status take_permissions(int descriptor, const std::string& old, const std::string& path) override;
  [[nodiscard]] Status datasync(int descriptor, const std::string& path) override;
  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status rename_new(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status unlink(const std::string& path) override;
  [[nodiscard]] Status sync_folder_of(const std::string& path) override;

 private:
  [[nodiscard]] Status step(const char* name, const std::string& path);
};

// Puts a file system in the place of the real one for as long as it lives.
class FileSystemInPlace {
 public:
  explicit FileSystemInPlace(os::FileSystem& system) { os::replace_file_system(&system); }
  ~FileSystemInPlace() { os::replace_file_system(nullptr); }
  FileSystemInPlace(const FileSystemInPlace&) = delete;
  FileSystemInPlace& operator=(const FileSystemInPlace&) = delete;
};

// A handle whose workers have engines of this disk.
[[nodiscard]] Handle make_sim_handle(SimDisk& disk, const HandleOptions& options);
[[nodiscard]] File open_sim(SimFileSystem& system, const std::string& path, FileMode mode);

}  // namespace headrace::test
