// SPDX-License-Identifier: Apache-2.0
// The public face of OpenFile.
// Any thread.
// A File shares its OpenFile.
#include <headrace/file.h>

#include <utility>

#include "transfer/open_file.h"

namespace headrace {

Result<File> File::open(const std::string& path, FileMode mode) {
  Result<std::shared_ptr<transfer::OpenFile>> file = transfer::OpenFile::open(os::file_system(), path, mode);
  if (!file) return std::unexpected(std::move(file).error());
  return File(*std::move(file));
}

Result<File> File::from_descriptor(int descriptor) {
  Result<std::shared_ptr<transfer::OpenFile>> file = transfer::OpenFile::duplicate(os::file_system(), descriptor);
  if (!file) return std::unexpected(std::move(file).error());
  return File(*std::move(file));
}

File::File(std::shared_ptr<transfer::OpenFile> file) noexcept : file_(std::move(file)) {}

const std::string& File::path() const noexcept {
  static const std::string none;
  return file_ ? file_->path() : none;
}

Result<uint64_t> File::size_bytes() const {
  if (!file_)
    return std::unexpected(Error{.code = ErrorCode::closed, .operation = "stat", .detail = "the file is not open"});
  return file_->system().size_bytes(file_->descriptor(), file_->path());
}

void File::give_up() const noexcept {
  if (file_) file_->write_refused();
}

uint32_t File::direct_memory_alignment_bytes() const {
  return file_ && file_->direct_descriptor() >= 0 ? file_->alignment().memory_bytes : 0;
}

uint32_t File::direct_offset_alignment_bytes() const {
  return file_ && file_->direct_descriptor() >= 0 ? file_->alignment().offset_bytes : 0;
}

}  // namespace headrace
