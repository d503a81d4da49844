// SPDX-License-Identifier: Apache-2.0
// An open file that many requests share: opened once, alignments asked of the system once.
// Any thread.
// Copies share the descriptors, which close when the last copy and the last transfer let go.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <headrace/error.h>

namespace headrace {

enum class FileMode : uint8_t {
  read,      // must exist
  update,    // created if missing, never truncated; reads and writes
  create,    // must not exist; a file whose first writes fail is removed again
  truncate,  // created if missing, cut to zero length now
};

namespace transfer {
class OpenFile;
}

class HEADRACE_EXPORT File {
 public:
  // ENOENT, EACCES, EISDIR and their like come back here, as does ESPIPE for a FIFO or socket.
  [[nodiscard]] static Result<File> open(const std::string& path, FileMode mode);

  // Duplicates `descriptor`, whose flags and position are never touched. O_APPEND is refused (EINVAL) when the
  // descriptor is writable, because Linux ignores the offset of a write to it. Direct I/O goes by a descriptor of its
  // own, reopened through /proc.
  [[nodiscard]] static Result<File> from_descriptor(int descriptor);

  File() noexcept = default;

  [[nodiscard]] bool is_open() const noexcept { return file_ != nullptr; }
  [[nodiscard]] const std::string& path() const noexcept;
  // The file's length now, in bytes (a block device's capacity).
  [[nodiscard]] Result<uint64_t> size_bytes() const;
  // What a direct transfer needs: alignment of memory and of offset and length, in bytes; 0 where direct I/O is
  // refused. The first call opens the direct descriptor.
  [[nodiscard]] uint32_t direct_memory_alignment_bytes() const;
  [[nodiscard]] uint32_t direct_offset_alignment_bytes() const;

  // No write into it will be asked for after all: if this open created the file, and nothing was written to it when it
  // closes, it is removed again. For callers who opened a file for a request that was then refused.
  void give_up() const noexcept;

  // For the library's own layers.
  explicit File(std::shared_ptr<transfer::OpenFile> file) noexcept;
  [[nodiscard]] const std::shared_ptr<transfer::OpenFile>& internal() const noexcept { return file_; }

 private:
  std::shared_ptr<transfer::OpenFile> file_;
};

}  // namespace headrace
