// SPDX-License-Identifier: Apache-2.0
// The index by device and inode, and the arithmetic of the clean-up.
// Any thread.
// See the header for ownership.
#include "transfer/file_history.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "os/per_process.h"

namespace headrace::transfer {
namespace {

struct Index {
  std::mutex mutex;
  std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<FileHistory>> histories;  // guarded by mutex
};

os::PerProcess<Index> index_of_this_process;

}  // namespace

FileHistory& FileHistory::join(uint64_t device, uint64_t inode) {
  Index& index = index_of_this_process.get();
  FileHistory* history = nullptr;
  {
    const std::lock_guard lock(index.mutex);
    std::unique_ptr<FileHistory>& place = index.histories[{device, inode}];
    if (!place) place.reset(new FileHistory(device, inode));
    history = place.get();
    ++history->users_;
  }
  const std::lock_guard cleaned(history->cleaning_);
  return *history;
}

void FileHistory::leave(const std::function<void(FileHistory&)>& clean_up) {
  Index& index = index_of_this_process.get();
  {
    const std::lock_guard lock(index.mutex);
    if (users_ > 1) {
      --users_;
      return;
    }
  }
  {
    // Who joins from here on waits in join().
    const std::lock_guard cleaning(cleaning_);
    clean_up(*this);
    const std::lock_guard lock(mutex_);
    failures_.clear();
  }
  std::unique_ptr<FileHistory> gone;
  const std::lock_guard lock(index.mutex);
  if (--users_ == 0) {
    const auto place = index.histories.find({device_, inode_});
    gone = std::move(place->second);
    index.histories.erase(place);
  }
}

void FileHistory::created(FileMode mode) {
  const std::lock_guard lock(mutex_);
  created_ = mode;
}

void FileHistory::wrote(uint64_t end_bytes, bool whole) {
  const std::lock_guard lock(mutex_);
  request_written_ |= whole;
  written_end_bytes_ = std::max(written_end_bytes_, end_bytes);
}

void FileHistory::failed(uint64_t begin_bytes, uint64_t good_end_bytes, uint64_t end_bytes) {
  const std::lock_guard lock(mutex_);
  if (failures_.size() < kFailuresMax)
    failures_.push_back({.begin = begin_bytes, .good_end = good_end_bytes, .end = end_bytes});
}

bool FileHistory::has_failures() const {
  const std::lock_guard lock(mutex_);
  return created_ && !failures_.empty();
}

std::optional<uint64_t> FileHistory::length_without_failures(uint64_t size_bytes, const DataEnd& data_end) const {
  const std::lock_guard lock(mutex_);
  if (!created_ || failures_.empty()) return std::nullopt;
  // Of a file made by `create` nothing stays before one request was written as a whole.
  const bool nothing_counts = *created_ == FileMode::create && !request_written_;
  const uint64_t written_end = nothing_counts ? 0 : written_end_bytes_;
  std::vector<Failure> failures = failures_;
  std::ranges::sort(failures, std::greater<>{}, &Failure::end);
  uint64_t length = size_bytes;
  for (uint64_t before = length + 1; length < before;) {
    before = length;
    for (const Failure& failure : failures) {
      const uint64_t begin = std::max(nothing_counts ? failure.begin : failure.good_end, written_end);
      if (begin < length && length <= failure.end) length = begin;
    }
    // A hole before a failed range, which only that range gave its length; but not the end of a file as others left it.
    if (length < size_bytes && length > written_end) length = data_end(written_end, length);
  }
  return length < size_bytes || size_bytes == 0 ? std::optional(length) : std::nullopt;
}

}  // namespace headrace::transfer
