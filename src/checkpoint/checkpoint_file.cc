// SPDX-License-Identifier: Apache-2.0
// Opening a checkpoint file: which format it is, and what every format has in common.
// See the header for threads.
// Owns what the header says.
#include "checkpoint/checkpoint_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/little_endian.h"
#include "checkpoint/waiting.h"
#include "format/format_error.h"
#include "os/error.h"
#include "transfer/open_file.h"

namespace headrace {

std::string_view checkpoint_format_name(CheckpointFormat format) noexcept {
  switch (format) {
    case CheckpointFormat::torch_zip: return "torch";
    case CheckpointFormat::torch_legacy: return "torch-legacy";
    case CheckpointFormat::safetensors: return "safetensors";
  }
  return "unknown";
}

namespace checkpoint {

Result<std::vector<std::byte>> Reader::read(const Range& range) { return read_many({&range, 1}); }

Result<std::vector<std::byte>> Reader::read_many(std::span<const Range> ranges) {
  uint64_t total = 0;
  for (const Range& range : ranges)
    total += range.bytes;
  std::vector<std::byte> bytes(total);
  std::vector<ReadItem> items;
  items.reserve(ranges.size());
  uint64_t at = 0;
  for (const Range& range : ranges) {
    items.push_back({.file = file_,
                     .request = {.offset_bytes = range.offset_bytes, .target = {bytes.data() + at, range.bytes, {}}}});
    at += range.bytes;
  }
  const Result<std::vector<Transfer>> transfers = handle_.read_many(items);
  if (!transfers) return std::unexpected(transfers.error());
  if (Status done = wait_for_all(*transfers, interrupted_, "load"); !done)
    return std::unexpected(std::move(done).error());
  return bytes;
}

namespace {

// Of a file that is none of ours, by its first bytes.
std::string what_else(std::span<const std::byte> first) {
  const auto stands_at = [&](size_t at, std::string_view text) {
    return first.size() >= at + text.size() &&
           std::ranges::equal(first.subspan(at, text.size()), std::as_bytes(std::span(text)));
  };
  if (first.empty()) return "the file is empty";
  if (std::ranges::all_of(first, [](std::byte byte) { return byte == std::byte{0}; }))
    return "the file begins with zeros: it was never written whole, or was damaged";
  if (stands_at(257, "ustar"))
    return "this is a tar archive; if torch.save wrote it, before 2017, load it with torch.load and save it again";
  if (stands_at(0, "version https://git-lfs"))
    return "this is a pointer of Git LFS, not the file that it stands for: run git lfs pull";
  if (first.size() > 8 && first[8] == std::byte{'{'})
    return "this begins like a safetensors file whose header is cut off or damaged";
  return "this is neither a file of torch.save nor of safetensors (tried: zip, legacy pickle, safetensors header)";
}

Result<CheckpointFormat> format_of(std::span<const std::byte> first, uint64_t file_bytes) {
  if (format::is_zip(first)) return CheckpointFormat::torch_zip;
  if (format::is_torch_legacy(first)) return CheckpointFormat::torch_legacy;
  constexpr uint64_t kLengthBytes = 8;
  // A safetensors file tells nothing of itself but a length, and a brace behind it.
  if (first.size() > kLengthBytes && first[kLengthBytes] == std::byte{'{'} &&
      base::load_little<uint64_t>(first, 0) <= file_bytes)
    return CheckpointFormat::safetensors;
  return format::corrupt("load", 0, what_else(first));
}

}  // namespace
}  // namespace checkpoint

bool CheckpointFile::Impl::has_sums() const noexcept {
  return std::ranges::any_of(storages, [](const StoredBytes& one) { return one.crc32.has_value(); });
}

std::string CheckpointFile::Impl::describe(uint32_t storage) const {
  const auto user = std::ranges::find(tensors, storage, &StoredTensor::storage);
  std::string tensor = user == tensors.end() ? std::string() : fmt::format("tensor {}", format::quote_name(user->name));
  switch (format) {
    case CheckpointFormat::safetensors: return tensor;
    case CheckpointFormat::torch_zip: {
      const std::string record = fmt::format("record {}", format::quote_name(zip_entries[storage].name));
      return tensor.empty() ? record : fmt::format("{} ({})", tensor, record);
    }
    case CheckpointFormat::torch_legacy: break;
  }
  const std::string name = fmt::format("storage {}", format::quote_name(storages[storage].key));
  return tensor.empty() ? name : fmt::format("{} ({})", tensor, name);
}

Error CheckpointFile::Impl::corrupt(uint64_t offset, uint64_t bytes, std::string detail) const {
  return {.code = ErrorCode::corrupt,
          .operation = "load",
          .path = path,
          .offset_bytes = offset,
          .length_bytes = bytes,
          .detail = std::move(detail)};
}

Status CheckpointFile::Impl::check_lead(uint32_t storage, std::span<const std::byte> lead) const {
  const auto with_path = [&](Error error) {
    error.path = path;
    return std::unexpected(std::move(error));
  };
  if (format == CheckpointFormat::torch_zip) {
    const Result<uint64_t> begin = format::zip_data_begin(zip_entries[storage], lead);
    if (!begin) return with_path(begin.error());
    if (*begin != storages[storage].offset_bytes)
      return std::unexpected(corrupt(lead_begin[storage], lead.size(),
                                     fmt::format("{}: its header does not have the length that the records around it "
                                                 "leave for it",
                                                 describe(storage))));
  }
  if (format == CheckpointFormat::torch_legacy) {
    Status checked = format::check_legacy_count(legacy_places[storage], storages[storage].key,
                                                lead.first<format::kLegacyCountBytes>());
    if (!checked) return with_path(std::move(checked).error());
  }
  return {};
}

Result<CheckpointFile> CheckpointFile::open(Handle& handle, const std::string& path, const LoadOptions& options) {
  auto impl = std::make_unique<Impl>();
  const auto with_path = [&](Error error) {
    if (error.path.empty()) error.path = path;
    return std::unexpected(std::move(error));
  };
  Result<File> file = File::open(path, FileMode::read);
  if (!file) return with_path(std::move(file).error());
  impl->file = *std::move(file);
  impl->path = path;
  const Result<uint64_t> bytes = impl->file.size_bytes();
  if (!bytes) return with_path(bytes.error());
  // /dev/zero says that it is empty, which would be taken for damage.
  if (*bytes == 0 && !impl->file.internal()->has_device_below())
    return std::unexpected(os::system_error("open", path, ESPIPE));
  impl->file_bytes = *bytes;
  checkpoint::Reader reader(handle, impl->file, options.interrupted);
  const Result<std::vector<std::byte>> first = reader.read({0, std::min(*bytes, checkpoint::kFirstBytes)});
  if (!first) return with_path(first.error());
  const Result<CheckpointFormat> format = checkpoint::format_of(*first, *bytes);
  if (!format) return with_path(format.error());
  impl->format = *format;
  Status opened;
  switch (*format) {
    case CheckpointFormat::torch_zip: opened = checkpoint::open_torch_zip(*impl, reader, *first, options); break;
    case CheckpointFormat::torch_legacy: opened = checkpoint::open_torch_legacy(*impl, reader, *first, options); break;
    case CheckpointFormat::safetensors: opened = checkpoint::open_safetensors(*impl, reader, *first); break;
  }
  if (!opened) return with_path(std::move(opened).error());
  if (options.verify == Verify::require && !impl->storages.empty() && !impl->has_sums()) {
    return with_path(Error{
        .code = ErrorCode::unavailable,
        .operation = "load",
        .detail = fmt::format("verify=require, but this {} file holds no sums", checkpoint_format_name(*format))});
  }
  for (uint32_t i = 0; i < impl->lead_begin.size(); ++i)
    impl->storages[i].lead_bytes = impl->storages[i].offset_bytes - impl->lead_begin[i];
  return CheckpointFile(std::move(impl));
}

CheckpointFile::CheckpointFile(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
CheckpointFile::CheckpointFile(CheckpointFile&&) noexcept = default;
CheckpointFile& CheckpointFile::operator=(CheckpointFile&&) noexcept = default;
CheckpointFile::~CheckpointFile() = default;

CheckpointFormat CheckpointFile::format() const noexcept { return impl_->format; }
const std::string& CheckpointFile::path() const noexcept { return impl_->path; }
uint64_t CheckpointFile::file_bytes() const noexcept { return impl_->file_bytes; }
int CheckpointFile::descriptor() const noexcept { return impl_->file.internal()->descriptor(); }
std::span<const StoredBytes> CheckpointFile::storages() const noexcept { return impl_->storages; }
std::span<const StoredTensor> CheckpointFile::tensors() const noexcept { return impl_->tensors; }
std::span<const StoredValue> CheckpointFile::other_values() const noexcept { return impl_->other_values; }
const std::optional<Metadata>& CheckpointFile::metadata() const noexcept { return impl_->metadata; }
const Pickle* CheckpointFile::pickle() const noexcept { return impl_->pickle ? &*impl_->pickle : nullptr; }
bool CheckpointFile::little_endian() const noexcept { return impl_->little_endian; }

Status CheckpointFile::check_lead(uint32_t storage, std::span<const std::byte> lead) const {
  return impl_->check_lead(storage, lead);
}

Result<std::vector<StoredBytes>> CheckpointFile::other_records(Handle& handle, const LoadOptions& options) const {
  std::vector<checkpoint::Reader::Range> headers;
  for (const format::ZipEntry& entry : impl_->other_entries)
    headers.push_back({entry.header_begin, format::kZipLocalHeaderBytes});
  checkpoint::Reader reader(handle, impl_->file, options.interrupted);
  const auto with_path = [&](Error error) {
    error.path = impl_->path;
    return std::unexpected(std::move(error));
  };
  const Result<std::vector<std::byte>> read = reader.read_many(headers);
  if (!read) return with_path(read.error());
  std::vector<StoredBytes> records;
  for (size_t i = 0; i < headers.size(); ++i) {
    const format::ZipEntry& entry = impl_->other_entries[i];
    const Result<uint64_t> begin =
        format::zip_data_begin(entry, std::span(*read).subspan(i * format::kZipLocalHeaderBytes));
    if (!begin) return with_path(begin.error());
    StoredBytes& record =
        records.emplace_back(StoredBytes{.key = entry.name, .offset_bytes = *begin, .bytes = entry.bytes});
    record.readable = entry.method == 0 && (entry.flags & format::kZipFlagsUnreadable) == 0;
    if (record.readable && (impl_->has_sums() || entry.sum != 0)) record.crc32 = entry.sum;
  }
  return records;
}

std::string_view CheckpointFile::pickle_bytes() const noexcept {
  if (!impl_->pickle) return {};
  return {reinterpret_cast<const char*>(impl_->pickle_bytes.data()) + impl_->pickle_begin,
          static_cast<size_t>(impl_->pickle->consumed_bytes())};
}

std::optional<uint32_t> CheckpointFile::find_storage(std::string_view key) const {
  const auto found = std::ranges::lower_bound(impl_->storages, key, {},
                                              [](const StoredBytes& one) { return std::string_view(one.key); });
  if (found == impl_->storages.end() || found->key != key) return std::nullopt;
  return static_cast<uint32_t>(found - impl_->storages.begin());
}

}  // namespace headrace
