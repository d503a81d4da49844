// SPDX-License-Identifier: Apache-2.0
// The one seam to files: open, allocate, cut, sync, rename. Tests put another in its place.
// Any thread.
// Descriptors returned belong to the caller; the real file system is stateless and lives for ever.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <headrace/error.h>
#include <headrace/file.h>

#include "os/direct_io.h"
#include "os/fd.h"

namespace headrace::os {

struct OpenedFile {
  Fd descriptor;  // buffered, close-on-exec
  bool readable = false;
  bool writable = false;
  bool created = false;            // by this call
  uint64_t device = 0, inode = 0;  // what the file is to the system, by whatever name
  bool regular = false;
  bool block_device = false;  // neither of the two: a character device
  bool in_memory = false;     // tmpfs, ramfs: there is no device below the page cache
  uint32_t block_bytes = 0;   // of the file system
  std::string path;           // as given, or what the descriptor is called
};

enum class Links : uint8_t { follow, itself };

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  [[nodiscard]] virtual Result<OpenedFile> open(const std::string& path, FileMode mode);
  // The caller's flags and position are never touched.
  [[nodiscard]] virtual Result<OpenedFile> duplicate(int descriptor);
  // The same file with O_DIRECT; a negative errno when the file system refuses.
  [[nodiscard]] virtual Result<Fd> reopen_direct(const OpenedFile& file);
  [[nodiscard]] virtual DirectAlignment direct_alignment(int descriptor);
  [[nodiscard]] virtual std::optional<uint64_t> resident_bytes(int descriptor, uint64_t offset_bytes,
                                                               uint64_t length_bytes);
  [[nodiscard]] virtual Result<uint64_t> size_bytes(int descriptor, const std::string& path);

  // A new file with these permissions, less the umask or by the folder's default ACL; locked (flock), so that
  // remove_orphans() can tell it from one whose process was killed.
  [[nodiscard]] virtual Result<OpenedFile> create_exclusive(const std::string& path, uint32_t mode);
  // A new file in `folder` without a name, gone when its descriptor closes; readable and writable by this user only. Where the
  // file system has no such thing, one whose name nobody can guess and which is removed at once. Errors name the folder.
  [[nodiscard]] virtual Result<OpenedFile> create_unnamed(const std::string& folder);
  // Space and length at once. A file system that cannot preallocate only gets the length.
  [[nodiscard]] virtual Status allocate(int descriptor, uint64_t bytes, const std::string& path);
  // The length becomes at least `bytes`, and space for the last `unit_bytes` of them is taken; nothing ever shrinks, whoever
  // else writes. A hint: what does not work is left to the writes that follow.
  virtual void grow(int descriptor, uint64_t bytes, uint32_t unit_bytes);
  [[nodiscard]] virtual Status truncate(int descriptor, uint64_t bytes, const std::string& path);
  // Gives the file the owner, permissions and access ACL of the one that `old` names, as far as this process may: without
  // the owner no set-user-ID, without the group or the ACL no more for the group than for all.
  [[nodiscard]] virtual Status take_permissions(int descriptor, const std::string& old, const std::string& path);
  [[nodiscard]] virtual Status datasync(int descriptor, const std::string& path);
  [[nodiscard]] virtual Status rename(const std::string& from, const std::string& to);
  // EEXIST where there is something called `to`.
  [[nodiscard]] virtual Status rename_new(const std::string& from, const std::string& to);
  [[nodiscard]] virtual Status unlink(const std::string& path);
  // fsync of the folder that holds `path`.
  [[nodiscard]] virtual Status sync_folder_of(const std::string& path);
  // End of the last byte of data in [from, to), or `from` when all of it is a hole. Where holes cannot be told, `to`.
  [[nodiscard]] virtual uint64_t data_end(int descriptor, uint64_t from, uint64_t to);
  // True when `path` still names the file that `descriptor` has open; `itself`: not through a symbolic link.
  [[nodiscard]] virtual bool names(const std::string& path, int descriptor, Links links);
};

// Removes files of `folder` that create_exclusive() made under such names in processes that are gone: those a minute old that
// nobody has locked. The number removed; what cannot be looked at stays.
size_t remove_orphans(const std::string& folder, std::string_view prefix, std::string_view suffix) noexcept;

// The one that files are opened through: the real one, unless a test has put another in its place.
[[nodiscard]] FileSystem& file_system() noexcept;
// For tests. Null: the real one again. What was opened before keeps the file system it came from, which must live on.
void replace_file_system(FileSystem* other) noexcept;

}  // namespace headrace::os
