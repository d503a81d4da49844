// SPDX-License-Identifier: Apache-2.0
// Opening the direct descriptor once, under a mutex, and the clean-up of a file whose first writes failed.
// Any thread.
// See the header for ownership.
#include "transfer/open_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/align.h"

namespace headrace::transfer {
namespace {

constexpr int kOpenRetriesMax = 16;

}  // namespace

Result<std::shared_ptr<OpenFile>> OpenFile::open(os::FileSystem& system, const std::string& path, FileMode mode) {
  for (int round = 0;; ++round) {
    Result<os::OpenedFile> opened = system.open(path, mode);
    if (!opened) return std::unexpected(std::move(opened).error());
    auto file = std::make_shared<OpenFile>(system, *std::move(opened), mode);
    // A clean-up of this process may have removed the name between the two lines above.
    const bool lost = file->history_ != nullptr && !system.names(path, file->descriptor(), os::Links::follow);
    if (!lost || round == kOpenRetriesMax) return file;
  }
}

Result<std::shared_ptr<OpenFile>> OpenFile::duplicate(os::FileSystem& system, int descriptor) {
  Result<os::OpenedFile> opened = system.duplicate(descriptor);
  if (!opened) return std::unexpected(std::move(opened).error());
  return std::make_shared<OpenFile>(system, *std::move(opened), FileMode::update);
}

OpenFile::OpenFile(os::FileSystem& system, os::OpenedFile opened, FileMode mode)
    : system_(system),
      opened_(std::move(opened)),
      history_(opened_.writable && opened_.regular ? &FileHistory::join(opened_.device, opened_.inode) : nullptr) {
  if (history_ != nullptr && opened_.created) history_->created(mode);
}

OpenFile::~OpenFile() {
  if (!has_history()) return;
  history_->leave([this](const FileHistory& history) { clean_up(history); });
}

void OpenFile::clean_up(const FileHistory& history) {
  if (!history.has_failures()) return;
  const Result<uint64_t> size = system_.size_bytes(descriptor(), path());
  if (!size) return;
  const std::optional<uint64_t> length = history.length_without_failures(
      *size, [this](uint64_t from, uint64_t to) { return system_.data_end(descriptor(), from, to); });
  if (!length) return;
  // A file that goes by another name now (a rename, or a relative path after chdir) is cut only, as is one that was opened
  // by a symbolic link: the link was there before.
  if (*length == 0 && system_.names(path(), descriptor(), os::Links::itself) && system_.unlink(path())) return;
  if (*size > *length) (void)system_.truncate(descriptor(), *length, path());
}

int OpenFile::direct_descriptor() {
  if (direct_.load(std::memory_order_acquire) == Direct::untried) {
    const std::lock_guard lock(mutex_);
    if (direct_.load(std::memory_order_relaxed) == Direct::untried) open_direct();
  }
  return direct_.load(std::memory_order_acquire) == Direct::open ? direct_descriptor_.get() : -1;
}

void OpenFile::open_direct() {
  alignment_ = system_.direct_alignment(descriptor());
  Direct outcome = Direct::refused;
  if (alignment_.refused) {
    refusal_ = "the file system says that this file has no direct I/O";
  } else if (Result<os::Fd> reopened = system_.reopen_direct(opened_)) {
    direct_descriptor_ = *std::move(reopened);
    granule_bytes_ = std::max({alignment_.offset_bytes, alignment_.memory_bytes, os::page_bytes()});
    // A file system block that is no power of two, or absurd, is one that does not bound direct I/O.
    const uint32_t block = opened_.block_bytes;
    if ((block & (block - 1)) == 0 && block <= (1U << 20)) granule_bytes_ = std::max(granule_bytes_, block);
    outcome = Direct::open;
  } else {
    refusal_ = fmt::format("O_DIRECT was refused at open ({})", errno_name(reopened.error().errno_value));
  }
  direct_.store(outcome, std::memory_order_release);
}

std::string OpenFile::direct_refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void OpenFile::refuse_direct(std::string why) {
  const std::lock_guard lock(mutex_);
  // The descriptor stays open until the end: blocks of other requests may be on their way through it.
  if (direct_.exchange(Direct::refused, std::memory_order_acq_rel) != Direct::refused) refusal_ = std::move(why);
}

void OpenFile::grow_ahead(uint64_t end_bytes) noexcept {
  if (end_bytes == 0) return;
  const uint64_t length = base::align_down(end_bytes - 1, granule_bytes());
  uint64_t grown = grown_end_bytes_.load(std::memory_order_relaxed);
  if (length <= grown || !grown_end_bytes_.compare_exchange_strong(grown, length, std::memory_order_relaxed)) return;
  system_.grow(descriptor(), length, granule_bytes());
}

void OpenFile::wrote(uint64_t end_bytes, Written written) {
  if (has_history()) history_->wrote(end_bytes, written == Written::whole_request);
}

void OpenFile::write_failed(uint64_t begin_bytes, uint64_t good_end_bytes, uint64_t end_bytes) {
  write_failed_.store(true, std::memory_order_relaxed);
  if (has_history()) history_->failed(begin_bytes, good_end_bytes, end_bytes);
}

void OpenFile::write_cancelled(uint64_t begin_bytes, uint64_t end_bytes) {
  // Without that the file has no length for this write.
  if (has_history() && grown_end_bytes_.load(std::memory_order_relaxed) != 0)
    history_->failed(begin_bytes, begin_bytes, end_bytes);
}

void OpenFile::write_refused() {
  if (has_history() && created()) history_->failed(0, 0, 0);
}

}  // namespace headrace::transfer
