// SPDX-License-Identifier: Apache-2.0
// See the header.
// One thread at a time.
// The temporary file goes when the object does.
#include "checkpoint/atomic_write.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/align.h"
#include "checkpoint/waiting.h"

namespace headrace::checkpoint {
namespace {

constexpr uint64_t kPageBytesMin = 4096;
constexpr std::array<std::byte, 1 << 16> kZeros = {};  // no more than the granule of any file system that is known

std::string free_space_at(const std::string& path) {
  std::error_code failed;
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::filesystem::space_info space = std::filesystem::space(folder.empty() ? "." : folder, failed);
  return failed ? std::string() : fmt::format("{} bytes are free there", space.available);
}

uint64_t end_of(const WriteItem& item) {
  uint64_t end = item.request.offset_bytes;
  for (const ConstRegion& source : item.request.sources)
    end += source.bytes;
  return end;
}

}  // namespace

AtomicWrite::AtomicWrite(Handle& handle, std::string path, AtomicFile file, uint64_t file_bytes,
                         const SaveOptions& options)
    : handle_(&handle),
      path_(std::move(path)),
      file_(std::move(file)),
      file_bytes_(file_bytes),
      granule_bytes_(std::max<uint64_t>(kPageBytesMin, file_.file().direct_offset_alignment_bytes())),
      interrupted_(options.interrupted) {}

Result<AtomicWrite> AtomicWrite::create(Handle& handle, const std::string& path, uint64_t file_bytes,
                                        const SaveOptions& options) {
  sweep_temporaries_beside(path);
  Result<AtomicFile> file = AtomicFile::create(path, {.size_bytes = file_bytes, .durability = options.durability});
  if (!file) {
    Error error = std::move(file).error();
    error.operation = "save";
    if (error.errno_value == ENOSPC || error.errno_value == EDQUOT)
      error.detail = fmt::format("the file needs {} bytes; {}. The old file, if there was one, is as it was",
                                 file_bytes, free_space_at(path));
    return std::unexpected(std::move(error));
  }
  return AtomicWrite(handle, path, *std::move(file), file_bytes, options);
}

Error AtomicWrite::told(Error error) const {
  if (error.errno_value == ENOSPC || error.errno_value == EDQUOT) error.detail = free_space_at(path_);
  if (!error.detail.empty()) error.detail += "; ";
  error.detail += "the old file, if there was one, is as it was";
  return error;
}

Status AtomicWrite::start(std::span<const Stretch> stretches) {
  std::vector<WriteItem> items;
  items.reserve(stretches.size());
  std::vector<ConstRegion> padded;  // the sources of the stretch at the end of the file
  for (const Stretch& stretch : stretches) {
    items.push_back(
        {.file = file_.file(),
         .request = {.offset_bytes = stretch.offset_bytes, .sources = stretch.sources, .checksum = stretch.checksum}});
  }
  if (const uint64_t more = base::align_up(file_bytes_, granule_bytes_) - file_bytes_; more <= kZeros.size()) {
    const auto last = std::ranges::find_if(items, [&](const WriteItem& item) { return end_of(item) == file_bytes_; });
    if (last != items.end()) {
      padded.assign(last->request.sources.begin(), last->request.sources.end());
      padded.push_back({kZeros.data(), more, {}});
      last->request.sources = padded;
    }
  }
  Result<std::vector<Transfer>> transfers = handle_->write_many(items);
  if (!transfers) {
    for (Transfer& transfer : under_way_)
      transfer.abort();
    (void)finish();
    return std::unexpected(told(std::move(transfers).error()));
  }
  for (size_t i = 0; i < stretches.size(); ++i) {
    if (stretches[i].checksum != Checksum::none) summed_.push_back(under_way_.size() + i);
  }
  std::ranges::move(*transfers, std::back_inserter(under_way_));
  return {};
}

Result<std::vector<uint32_t>> AtomicWrite::finish() {
  const std::vector<Transfer> transfers = std::exchange(under_way_, {});
  const std::vector<size_t> summed = std::exchange(summed_, {});
  if (Status done = wait_for_all(transfers, interrupted_, "save"); !done)
    return std::unexpected(told(std::move(done).error()));
  std::vector<uint32_t> sums;
  sums.reserve(summed.size());
  for (const size_t i : summed)
    sums.push_back(*transfers[i].crc32());
  return sums;
}

Status AtomicWrite::commit() {
  Status committed = file_.commit();
  if (!committed) {
    Error error = std::move(committed).error();
    if (error.errno_value == ENOSPC || error.errno_value == EDQUOT) error.detail = free_space_at(path_);
    return std::unexpected(std::move(error));
  }
  return {};
}

}  // namespace headrace::checkpoint
