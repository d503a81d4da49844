// SPDX-License-Identifier: Apache-2.0
// What File shares: the buffered descriptor, the direct one opened at first need, and what was learned about the file.
// Any thread.
// Owned by Files and by unfinished transfers; the last to let go closes, and cleans up after writes that failed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <headrace/file.h>

#include "os/file_system.h"
#include "os/process_id.h"
#include "transfer/file_history.h"

namespace headrace::transfer {

class OpenFile {
 public:
  [[nodiscard]] static Result<std::shared_ptr<OpenFile>> open(os::FileSystem& system, const std::string& path,
                                                              FileMode mode);
  [[nodiscard]] static Result<std::shared_ptr<OpenFile>> duplicate(os::FileSystem& system, int descriptor);

  OpenFile(os::FileSystem& system, os::OpenedFile opened, FileMode mode);
  // The last of this process to let go of a file that it created, and into which a write failed, undoes what is left of
  // that: see FileHistory. Never in a child made by fork: the file is its parent's.
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return opened_.path; }
  [[nodiscard]] bool readable() const noexcept { return opened_.readable; }
  [[nodiscard]] bool writable() const noexcept { return opened_.writable; }
  [[nodiscard]] bool in_memory() const noexcept { return opened_.in_memory; }
  [[nodiscard]] bool has_device_below() const noexcept { return opened_.regular || opened_.block_device; }
  [[nodiscard]] os::FileSystem& system() const noexcept { return system_; }
  [[nodiscard]] int descriptor() const noexcept { return opened_.descriptor.get(); }

  // -1 when direct I/O was refused; `direct_refusal()` then tells why. The first call opens it.
  [[nodiscard]] int direct_descriptor();
  // For a block already on its way there when another found out.
  [[nodiscard]] int direct_descriptor_even_if_refused() const noexcept { return direct_descriptor_.get(); }
  // A direct transfer went well: a later EINVAL says something about that block, not about the file.
  void direct_worked() noexcept { direct_worked_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool has_direct_worked() const noexcept { return direct_worked_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::string direct_refusal() const;
  // The file system took the open and refused the first transfer.
  void refuse_direct(std::string why);
  // Valid after direct_descriptor() returned one: the larger of direct-I/O alignment, file system block and page.
  [[nodiscard]] uint32_t granule_bytes() const noexcept { return granule_bytes_; }
  [[nodiscard]] os::DirectAlignment alignment() const noexcept { return alignment_; }

  // A direct write beyond the end of a file is one at a time to the file system: the lock is exclusive, and it waits. So a
  // file that this object created gets most of its length before the first block of a long write: all but the last
  // granule, so that one whose writer is killed stays too short until the end of it was written, as without this.
  // Call with direct I/O open.
  void grow_ahead(uint64_t end_bytes) noexcept;
  [[nodiscard]] bool created() const noexcept { return opened_.created && opened_.regular; }
  [[nodiscard]] bool has_length() const noexcept { return opened_.regular; }

  enum class Written : uint8_t { prefix_of_request, whole_request };
  void wrote(uint64_t end_bytes, Written written);
  // Of a write of [begin, end) nothing behind `good_end` is there.
  void write_failed(uint64_t begin_bytes, uint64_t good_end_bytes, uint64_t end_bytes);
  // The same, but it does not count as a failure.
  void write_cancelled(uint64_t begin_bytes, uint64_t end_bytes);
  // A write into this file was not even started.
  void write_refused();
  [[nodiscard]] bool has_failed_write() const noexcept { return write_failed_.load(std::memory_order_relaxed); }

 private:
  enum class Direct : uint8_t { untried, open, refused };

  void open_direct();  // with mutex_ held
  void clean_up(const FileHistory& history);
  // A child made by fork leaves its parent's alone: a lock of it may have been held then.
  [[nodiscard]] bool has_history() const noexcept { return history_ != nullptr && process_ == os::process_id(); }

  os::FileSystem& system_;
  os::OpenedFile opened_;
  const pid_t process_ = os::process_id();
  mutable std::mutex mutex_;
  std::atomic<Direct> direct_ = Direct::untried;  // written under mutex_; what it publishes is read after acquire
  os::Fd direct_descriptor_;
  os::DirectAlignment alignment_;
  uint32_t granule_bytes_ = 0;
  std::string refusal_;  // guarded by mutex_
  std::atomic<bool> direct_worked_ = false;
  std::atomic<bool> write_failed_ = false;
  std::atomic<uint64_t> grown_end_bytes_ = 0;
  FileHistory* const history_;  // null unless this is a regular file, open for writing
};

}  // namespace headrace::transfer
