// SPDX-License-Identifier: Apache-2.0
// A file to try engines with, which nobody can name and which leaves nothing behind, however this process ends.
// One thread makes and drops it; the Files it gives are as any other.
// Owns the file; its bytes are given back when this and the last File are gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <headrace/error.h>
#include <headrace/file.h>

#include "os/fd.h"

namespace headrace::diagnose {

class TrialFile {
 public:
  // Without a name from the start (O_TMPFILE) where the file system has that; else under one of AtomicFile's kind, which is
  // taken away before a byte is written. Space for `bytes` is taken, so that a full disk is told at once.
  [[nodiscard]] static Result<TrialFile> create(const std::string& folder, uint64_t bytes, size_t file_count);

  // Of the same file: what one learns about it (direct I/O refused) the others have to learn anew. Their direct descriptors are open.
  [[nodiscard]] const File& file(size_t index) const { return files_[index]; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

 private:
  os::Fd descriptor_;
  std::vector<File> files_;
};

}  // namespace headrace::diagnose
