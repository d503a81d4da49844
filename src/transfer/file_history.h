// SPDX-License-Identifier: Apache-2.0
// What this process wrote into a file while it is open for writing here, whichever objects did it: to undo after a
// failure what was this process's own, and nothing else.
// Any thread.
// Shared by all OpenFiles of one inode; the index of them is one per process and never destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include <headrace/file.h>

namespace headrace::transfer {

class FileHistory {
 public:
  // The one of this file, made now if need be, with one more user. Waits for a clean-up of the file that is under way:
  // it may remove the name, so look again whether the descriptor still has one.
  [[nodiscard]] static FileHistory& join(uint64_t device, uint64_t inode);
  // One user less. The last one runs `clean_up` first, with nobody else in the file.
  void leave(const std::function<void(FileHistory&)>& clean_up);

  void created(FileMode mode);
  // [begin, end) is written; `whole`: it is all of a request.
  void wrote(uint64_t end_bytes, bool whole);
  // Of [begin, end) nothing behind `good_end` counts as written.
  void failed(uint64_t begin_bytes, uint64_t good_end_bytes, uint64_t end_bytes);

  // This process created the file, and a write into it failed.
  [[nodiscard]] bool has_failures() const;
  // End of the last data in [from, to) of the file, or `from`.
  using DataEnd = std::function<uint64_t(uint64_t from, uint64_t to)>;
  // The length that a file of `size_bytes` has without what failed writes left at its end; none when there is nothing to
  // undo. What others wrote stays: only failed ranges and holes are taken off, from the end.
  [[nodiscard]] std::optional<uint64_t> length_without_failures(uint64_t size_bytes, const DataEnd& data_end) const;

 private:
  struct Failure {
    uint64_t begin, good_end, end;
  };
  static constexpr size_t kFailuresMax = 4096;  // more are not remembered: then less is undone

  FileHistory(uint64_t device, uint64_t inode) : device_(device), inode_(inode) {}

  const uint64_t device_, inode_;
  uint32_t users_ = 0;               // guarded by the index's lock
  std::mutex cleaning_;              // held during clean_up
  mutable std::mutex mutex_;         // guards what follows
  std::optional<FileMode> created_;  // by this process, in this mode
  bool request_written_ = false;     // some request as a whole
  uint64_t written_end_bytes_ = 0;   // of whole requests and of what failed ones wrote without a gap
  std::vector<Failure> failures_;
};

}  // namespace headrace::transfer
