// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all: written under a temporary name in the same folder, then renamed.
// Any thread may resize, commit or discard, one at a time waits for another; any number may write ranges of file() in between.
// Owns the temporary file: destroyed without commit(), it is removed and the old file is untouched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <headrace/error.h>
#include <headrace/file.h>

namespace headrace {

enum class Durability : uint8_t {
  none,  // the page cache and the device's cache may still hold the bytes
  data,  // fdatasync before the transfer is done (for an atomic file also rename, then fsync of the folder)
};

enum class Existing : uint8_t {
  refuse,   // EEXIST where there is a file of that name already, even one that came meanwhile
  replace,  // atomically: it stays as it is until the new one is whole
};

struct AtomicFileOptions {
  uint64_t size_bytes = 0;  // exact final length; preallocated now, so that a full disk is known at once
  Durability durability = Durability::data;
  Existing existing = Existing::replace;  // `refuse` is asked at the commit
};

class HEADRACE_EXPORT AtomicFile {
 public:
  // A symbolic link at `path` is followed: the file it names is replaced and the link stays. Other hard links keep the
  // old contents. Owner, permission bits and access ACL are those of the file replaced as far as this process may give
  // them, else what the umask and the folder make of 0666. A path that names a directory or device is refused.
  [[nodiscard]] static Result<AtomicFile> create(const std::string& path, const AtomicFileOptions& options);

  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();

  [[nodiscard]] const File& file() const noexcept;
  [[nodiscard]] const std::string& temporary_path() const noexcept;

  // Another exact final length, for those who learn it while they write. Space for a larger one is taken now; on an error the
  // length asked for before stays. What was written beyond a smaller one is cut off; writes there must be over.
  [[nodiscard]] Status resize(uint64_t size_bytes);

  // Exact size, fdatasync, rename, fsync of the folder. On an error before the rename the temporary file is gone and the old file is as
  // it was; if only the last step fails, the new file is in place and the error's detail says so. Call once, after every
  // write into file() is done.
  [[nodiscard]] Status commit();
  // Removes the temporary file. Safe to call twice, and after commit(), when it does nothing.
  void discard() noexcept;

 private:
  class Impl;
  explicit AtomicFile(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// Removes the temporary files of AtomicFiles of killed processes from the folder that holds `path`: those a minute old whose
// process, on whatever machine shares the locks of the file system, is gone. Returns how many went; what cannot be looked at stays.
HEADRACE_EXPORT size_t sweep_temporaries_beside(const std::string& path) noexcept;

}  // namespace headrace
