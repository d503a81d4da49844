// SPDX-License-Identifier: Apache-2.0
// Sums grow from the front of each storage; what comes out of order is left to a read of its own.
// See the header for threads.
// Owns what the header says.
#include "convert/storage_sums.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/crc32.h"
#include "convert/range_stream.h"
#include "format/format_error.h"

namespace headrace::convert {

namespace {

Result<RangeStream> stream_of(Handle& handle, const CheckpointSet& set, std::vector<FileRange> ranges,
                              const std::function<bool()>& interrupted) {
  std::vector<File> files;
  for (const CheckpointFile& file : set.files()) {
    Result<File> opened = File::from_descriptor(file.descriptor());
    if (!opened) return std::unexpected(std::move(opened).error());
    files.push_back(*std::move(opened));
  }
  return RangeStream::create(handle, std::move(files), std::move(ranges), interrupted);
}

}  // namespace

Status StorageSums::expect(Handle& handle, std::span<const StorageRange> ranges,
                           const std::function<bool()>& interrupted) {
  std::map<Key, uint64_t> ends;  // how far from the front each will be known
  std::vector<Key> leads;
  for (const StorageRange& range : ranges) {
    const Key key = {range.file, range.storage};
    if (!storage(key).crc32) {
      if (storage(key).lead_bytes != 0 && without_sum_.insert(key).second) leads.push_back(key);
      continue;
    }
    uint64_t& end = ends.try_emplace(key, progress_[key].bytes).first->second;
    if (range.offset_bytes <= end) end = std::max(end, range.offset_bytes + range.bytes);
  }
  if (Status good = check_leads(handle, leads, interrupted); !good) return good;
  std::vector<Key> left;
  for (const auto& [key, end] : ends)
    if (end < storage(key).bytes) left.push_back(key);
  return left.empty() ? Status{} : read_whole(handle, left, interrupted);
}

Status StorageSums::read_whole(Handle& handle, std::span<const Key> storages,
                               const std::function<bool()>& interrupted) {
  std::vector<FileRange> ranges;
  for (const Key& key : storages)
    ranges.push_back({.file = key.first, .offset_bytes = storage(key).offset_bytes, .bytes = storage(key).bytes});
  Result<RangeStream> stream = stream_of(handle, *set_, std::move(ranges), interrupted);
  if (!stream) return std::unexpected(std::move(stream).error());
  while (true) {
    const Result<std::optional<RangePiece>> piece = stream->next();
    if (!piece) return std::unexpected(piece.error());
    if (!*piece) return {};
    const auto& [file, storage] = storages[(*piece)->item];
    const std::span<const std::byte> bytes = (*piece)->bytes;
    if (Status good = take(
            {.file = file, .storage = storage, .offset_bytes = (*piece)->offset_bytes, .bytes = bytes.size()}, bytes);
        !good)
      return good;
  }
}

// A block lost or put in on the way shows in the counts and headers between the storages.
Status StorageSums::check_leads(Handle& handle, std::span<const Key> storages,
                                const std::function<bool()>& interrupted) {
  std::vector<FileRange> ranges;
  for (const Key& key : storages)
    ranges.push_back({.file = key.first,
                      .offset_bytes = storage(key).offset_bytes - storage(key).lead_bytes,
                      .bytes = storage(key).lead_bytes});
  Result<RangeStream> stream = stream_of(handle, *set_, std::move(ranges), interrupted);
  if (!stream) return std::unexpected(std::move(stream).error());
  std::vector<std::byte> lead;
  while (true) {
    const Result<std::optional<RangePiece>> piece = stream->next();
    if (!piece) return std::unexpected(piece.error());
    if (!*piece) return {};
    const auto& [file, storage] = storages[(*piece)->item];
    if ((*piece)->offset_bytes == 0) lead.clear();
    lead.insert(lead.end(), (*piece)->bytes.begin(), (*piece)->bytes.end());
    if (lead.size() < set_->files()[file].storages()[storage].lead_bytes) continue;
    if (Status good = set_->files()[file].check_lead(storage, lead); !good) return good;
  }
}

Status StorageSums::take(const StorageRange& range, std::span<const std::byte> bytes) {
  const Key key = {range.file, range.storage};
  const StoredBytes& stored = storage(key);
  if (!stored.crc32) return {};
  Progress& known = progress_[key];
  const uint64_t end = range.offset_bytes + bytes.size();
  if (range.offset_bytes > known.bytes || end <= known.bytes) return {};
  known.sum = base::crc32(bytes.subspan(known.bytes - range.offset_bytes), known.sum);
  known.bytes = end;
  if (end < stored.bytes || known.sum == *stored.crc32) return {};
  const CheckpointFile& file = set_->files()[range.file];
  const std::string tensor = tensor_in_storage(file, range.storage);
  const std::string what = fmt::format("storage {}", format::quote_name(stored.key));
  return std::unexpected(
      Error{.code = ErrorCode::corrupt,
            .operation = "read",
            .path = file.path(),
            .offset_bytes = stored.offset_bytes,
            .detail = (tensor.empty() ? "" : fmt::format("tensor {}: ", format::quote_name(tensor))) +
                      sum_mismatch(what, stored.offset_bytes, stored.bytes, known.sum, *stored.crc32) +
                      ". Take another copy, or take what is left with --no-verify (ConvertOptions::verify)"});
}

std::string sum_mismatch(std::string_view what, uint64_t offset_bytes, uint64_t bytes, uint32_t sum,
                         uint32_t expected) {
  return fmt::format(
      "the CRC-32 of {} ({} bytes at offset {}) is {:08x}, and the file says {:08x}: it was damaged after it was "
      "written",
      what, bytes, offset_bytes, sum, expected);
}

std::string tensor_in_storage(const CheckpointFile& file, uint32_t storage) {
  const auto user = std::ranges::find(file.tensors(), storage, &StoredTensor::storage);
  return user == file.tensors().end() ? std::string() : user->name;
}

uint64_t unlisted_bytes(const CheckpointFile& file) {
  std::vector<bool> listed(file.storages().size());
  for (const StoredTensor& tensor : file.tensors())
    listed[tensor.storage] = true;
  uint64_t bytes = 0;
  for (size_t i = 0; i < listed.size(); ++i)
    bytes += listed[i] ? 0 : file.storages()[i].bytes;
  return bytes;
}

}  // namespace headrace::convert
