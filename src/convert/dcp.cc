// SPDX-License-Identifier: Apache-2.0
// What .metadata says, and whether the files beside it hold that.
// See the header for threads.
// Owns the opened files for the time of a call.
#include "convert/dcp.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/crc32.h"
#include "base/progress_meter.h"
#include "convert/range_stream.h"
#include "format/dcp_metadata.h"
#include "format/format_error.h"
#include "format/torch_zip_reader.h"
#include "os/small_file.h"

namespace headrace::convert {
namespace {

namespace fs = std::filesystem;
using base::ProgressMeter;
using format::DcpMetadata;
using format::DcpPiece;
using format::DcpPlace;
using format::DcpTensor;
using Severity = CheckpointProblem::Severity;

constexpr uint64_t kMetadataBytesMax = uint64_t{1} << 30;
// Of one piece's archive, which has a handful of records.
constexpr uint64_t kDirectoryBytesMax = uint64_t{64} << 20;

std::string join(const std::string& folder, std::string_view name) {
  return folder.ends_with('/') ? fmt::format("{}{}", folder, name) : fmt::format("{}/{}", folder, name);
}

Result<DcpMetadata> read_metadata(const std::string& folder) {
  const std::string path = join(folder, ".metadata");
  const Result<std::vector<std::byte>> bytes = os::read_small_file(path, kMetadataBytesMax);
  if (!bytes) return std::unexpected(bytes.error());
  Result<DcpMetadata> metadata = format::parse_dcp_metadata(*bytes);
  if (!metadata) metadata.error().path = path;
  return metadata;
}

// One piece of the folder's data, with the name of what it belongs to.
struct Placed {
  std::string_view name;
  const DcpPlace* place = nullptr;
};

class Folder {
 public:
  Folder(const std::string& path, const DcpMetadata& metadata) : path_(path), metadata_(metadata) {
    for (const DcpTensor& tensor : metadata.tensors)
      for (const DcpPiece& piece : tensor.pieces)
        add(tensor.name, piece.place);
    for (const format::DcpObject& object : metadata.objects)
      add(object.name, object.place);
    check();
  }

  [[nodiscard]] std::span<const Placed> placed_in(std::string_view file) const {
    const auto found =
        std::ranges::equal_range(placed, file, {}, [](const Placed& one) { return std::string_view(one.place->file); });
    return {found.begin(), found.end()};
  }

  std::vector<CheckpointProblem> problems;
  std::map<std::string, uint64_t> files;  // by name: length; those that are there
  std::vector<Placed> placed;             // those that lie inside their file, by file and offset

 private:
  void add(std::string_view name, const std::optional<DcpPlace>& place) {
    if (place)
      placed.push_back({name, &*place});
    else
      tell(Severity::error, ".metadata", name, 0, "it does not say where this lies");
  }

  void tell(Severity severity, std::string_view file, std::string_view name, uint64_t offset, std::string text) {
    problems.push_back({.severity = severity,
                        .file = join(path_, file),
                        .tensor = std::string(name),
                        .offset_bytes = offset,
                        .text = std::move(text)});
  }

  // The length of a file beside .metadata; nothing if it is not there, or elsewhere.
  std::optional<uint64_t> length_of(const std::string& file) {
    if (const auto known = files.find(file); known != files.end()) return known->second;
    const fs::path name(file);
    if (file.empty() || name.is_absolute() || std::ranges::find(name, fs::path("..")) != name.end())
      return std::nullopt;
    std::error_code error;
    const std::string path = join(path_, file);
    if (!fs::is_regular_file(path, error)) return std::nullopt;
    const uint64_t bytes = fs::file_size(path, error);
    if (error) return std::nullopt;
    files.emplace(file, bytes);
    return bytes;
  }

  void check() {
    for (const std::string& global : metadata_.foreign_globals)
      tell(Severity::warning, ".metadata", {}, 0,
           fmt::format(
               "it names {}, which no writer of torch puts there: torch.distributed.checkpoint.load would import and "
               "may run it",
               global));
    for (const DcpTensor& tensor : metadata_.tensors) {
      if (!tensor.dtype)
        tell(Severity::warning, ".metadata", tensor.name, 0,
             fmt::format("its element type {} is not known here", tensor.dtype_name));
      if (std::string fault = format::check_dcp_pieces(tensor); !fault.empty())
        tell(Severity::error, ".metadata", tensor.name, 0, std::move(fault));
    }
    std::erase_if(placed, [&](const Placed& one) {
      const std::optional<uint64_t> length = length_of(one.place->file);
      if (!length) {
        tell(Severity::error, one.place->file, one.name, 0,
             "the metadata say that this file holds it; there is no such file");
      } else if (one.place->offset_bytes > *length || one.place->bytes > *length - one.place->offset_bytes) {
        tell(Severity::error, one.place->file, one.name, one.place->offset_bytes,
             fmt::format("it should have {} bytes at offset {}; the file has {}", one.place->bytes,
                         one.place->offset_bytes, *length));
      } else {
        return false;
      }
      return true;
    });
    std::ranges::sort(placed, {}, [](const Placed& one) {
      return std::pair(std::string_view(one.place->file), one.place->offset_bytes);
    });
  }

  const std::string& path_;
  const DcpMetadata& metadata_;
};

// The sums of the records of one archive, whose bytes come by from front to back.
class ArchiveCheck {
 public:
  ArchiveCheck(std::vector<format::ZipEntry> entries) : entries_(std::move(entries)) {
    std::ranges::sort(entries_, {}, &format::ZipEntry::header_begin);
  }

  // Bytes of the archive from `offset` on; a fault, or an empty text.
  std::string add(uint64_t offset, std::span<const std::byte> bytes) {
    while (at_ < entries_.size()) {
      const format::ZipEntry& entry = entries_[at_];
      if (!data_begin_) {
        // The header, and then the name and extra field that it tells the lengths of.
        if (offset + bytes.size() <= entry.header_begin) return {};
        const uint64_t begin = entry.header_begin + header_.size();
        const uint64_t missing = format::kZipLocalHeaderBytes - header_.size();
        const std::span<const std::byte> there = bytes.subspan(begin - offset);
        header_.insert(header_.end(), there.begin(),
                       there.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(missing, there.size())));
        if (header_.size() < format::kZipLocalHeaderBytes) return {};
        const Result<uint64_t> found = format::zip_data_begin(entry, header_);
        if (!found) return found.error().detail;
        data_begin_ = *found;
      }
      const uint64_t end = *data_begin_ + entry.bytes;
      const uint64_t from = std::max(offset, *data_begin_), to = std::min(offset + bytes.size(), end);
      if (from < to) sum_ = base::crc32(bytes.subspan(from - offset, to - from), sum_);
      if (offset + bytes.size() < end) return {};
      if (sum_ != entry.sum)
        return fmt::format(
            "the CRC-32 of its record {} is {:08x}, and the archive says {:08x}: it was damaged after it was written",
            format::quote_name(entry.name), sum_, entry.sum);
      ++at_;
      header_.clear();
      data_begin_.reset();
      sum_ = 0;
    }
    return {};
  }

 private:
  std::vector<format::ZipEntry> entries_;
  size_t at_ = 0;  // the entry whose bytes come next
  std::vector<std::byte> header_;
  std::optional<uint64_t> data_begin_;
  uint32_t sum_ = 0;
};

class DcpVerifier {
 public:
  DcpVerifier(Handle& handle, const std::string& path, const VerifyOptions& options, Verification& result)
      : handle_(handle), path_(path), options_(options), result_(result) {}

  Status run() {
    const Result<DcpMetadata> metadata = read_metadata(path_);
    if (!metadata) {
      if (metadata.error().code != ErrorCode::corrupt) return std::unexpected(metadata.error());
      result_.problems.push_back({.file = metadata.error().path,
                                  .tensor = {},
                                  .offset_bytes = metadata.error().offset_bytes,
                                  .text = metadata.error().detail});
      return {};
    }
    Folder folder(path_, *metadata);
    uint64_t total_bytes = 0;
    for (const Placed& one : folder.placed)
      total_bytes += one.place->bytes;
    ProgressMeter meter(options_.progress, total_bytes);
    for (const auto& [name, bytes] : folder.files)
      if (Status checked = check_file(name, bytes, folder.placed_in(name), meter); !checked) return checked;
    std::ranges::move(folder.problems, std::back_inserter(result_.problems));
    if (options_.stats == VerifyOptions::Stats::per_tensor)
      for (const DcpTensor& tensor : metadata->tensors)
        result_.stats.push_back({.name = tensor.name,
                                 .dtype = tensor.dtype.value_or(DType::uint8),
                                 .why_not = "statistics of DCP folders are not there yet"});
    return {};
  }

 private:
  Status check_file(const std::string& name, uint64_t bytes, std::span<const Placed> placed, ProgressMeter& meter) {
    const std::string path = join(path_, name);
    Result<File> file = File::open(path, FileMode::read);
    if (!file) return std::unexpected(std::move(file).error());
    VerifiedFile facts = {.path = path, .format = "dcp", .bytes = bytes};
    std::vector<FileRange> ranges;
    std::vector<std::optional<ArchiveCheck>> archives;
    for (const Placed& one : placed) {
      ranges.push_back({.file = 0, .offset_bytes = one.place->offset_bytes, .bytes = one.place->bytes});
      Result<std::optional<ArchiveCheck>> archive = open_archive(*file, path, one);
      if (!archive) return std::unexpected(std::move(archive).error());
      (*archive ? facts.summed_bytes : facts.read_bytes) += one.place->bytes;
      archives.push_back(*std::move(archive));
    }
    Result<RangeStream> stream =
        RangeStream::create(handle_, {*file}, std::move(ranges), options_.progress.interrupted);
    if (!stream) return std::unexpected(std::move(stream).error());
    while (true) {
      const Result<std::optional<Piece>> piece = stream->next();
      if (!piece) return std::unexpected(piece.error());
      if (!*piece) break;
      const size_t item = (*piece)->item;
      meter.add(path, (*piece)->bytes.size());
      if (!archives[item]) continue;
      std::string fault = archives[item]->add((*piece)->offset_bytes, (*piece)->bytes);
      if (fault.empty()) continue;
      tell(path, placed[item], std::move(fault));
      archives[item].reset();  // one fault of an archive is enough
    }
    result_.files.push_back(std::move(facts));
    return {};
  }

  void tell(const std::string& path, const Placed& one, std::string text) {
    result_.problems.push_back({.file = path,
                                .tensor = std::string(one.name),
                                .offset_bytes = one.place->offset_bytes,
                                .text = std::move(text)});
  }

  // What its end says of its records; none where the piece is no zip archive, and a problem where it is a damaged one.
  Result<std::optional<ArchiveCheck>> open_archive(const File& file, const std::string& path, const Placed& one) {
    const DcpPlace& place = *one.place;
    Result<std::vector<std::byte>> first = read(file, place.offset_bytes, std::min<uint64_t>(place.bytes, 4));
    if (!first) return std::unexpected(std::move(first).error());
    if (!format::is_zip(*first)) return std::optional<ArchiveCheck>();
    const uint64_t tail_bytes = std::min(place.bytes, format::kZipTailBytesMax);
    Result<std::vector<std::byte>> tail = read(file, place.offset_bytes + place.bytes - tail_bytes, tail_bytes);
    if (!tail) return std::unexpected(std::move(tail).error());
    const auto damaged = [&](const Error& error) {
      tell(path, one, error.detail);
      return std::optional<ArchiveCheck>();
    };
    const Result<format::ZipDirectory> where = format::find_zip_directory(*tail, place.bytes);
    if (!where) return damaged(where.error());
    if (where->bytes > kDirectoryBytesMax)
      return damaged(
          Error{.code = ErrorCode::corrupt,
                .detail = fmt::format("the directory of its archive is larger than {} bytes", kDirectoryBytesMax)});
    Result<std::vector<std::byte>> directory = read(file, place.offset_bytes + where->begin, where->bytes);
    if (!directory) return std::unexpected(std::move(directory).error());
    Result<std::vector<format::ZipEntry>> entries = format::parse_zip_directory(*directory, *where);
    if (!entries) return damaged(entries.error());
    return std::optional<ArchiveCheck>(std::in_place, *std::move(entries));
  }

  Result<std::vector<std::byte>> read(const File& file, uint64_t offset, uint64_t bytes) {
    std::vector<std::byte> target(bytes);
    Result<Transfer> transfer = handle_.read(file, {.offset_bytes = offset, .target = {target.data(), bytes, {}}});
    if (!transfer) return std::unexpected(std::move(transfer).error());
    if (const Result<uint64_t> done = transfer->result(); !done) return std::unexpected(done.error());
    return target;
  }

  Handle& handle_;
  const std::string& path_;
  const VerifyOptions& options_;
  Verification& result_;
};

}  // namespace

bool is_dcp_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) && fs::is_regular_file(join(path, ".metadata"), error);
}

Result<Inspection> inspect_dcp(const std::string& path) {
  const Result<DcpMetadata> metadata = read_metadata(path);
  if (!metadata) return std::unexpected(metadata.error());
  Folder folder(path, *metadata);
  Inspection inspection;
  inspection.path = path;
  inspection.problems = std::move(folder.problems);
  std::map<std::string_view, uint32_t> numbers;
  for (const auto& [name, bytes] : folder.files) {
    numbers.emplace(name, static_cast<uint32_t>(inspection.files.size()));
    InspectedFile& file =
        inspection.files.emplace_back(InspectedFile{.path = join(path, name), .format = "dcp", .bytes = bytes});
    for (const Placed& one : folder.placed_in(name)) {
      ++file.storages;
      file.storage_bytes += one.place->bytes;
    }
  }
  for (const DcpTensor& tensor : metadata->tensors) {
    InspectedTensor told = {.name = tensor.name, .dtype = tensor.dtype.value_or(DType::uint8), .shape = tensor.shape};
    const uint64_t elements = element_count(tensor.shape);
    if (__builtin_mul_overflow(elements, dtype_facts(told.dtype).torch_bytes, &told.bytes)) told.bytes = 0;
    told.pieces = tensor.pieces.size();
    told.strides.resize(tensor.shape.size());
    uint64_t stride = 1;
    for (size_t d = tensor.shape.size(); d-- > 0; stride *= std::max<uint64_t>(tensor.shape[d], 1))
      told.strides[d] = static_cast<int64_t>(stride);
    if (!tensor.pieces.empty() && tensor.pieces.front().place) {
      const DcpPlace& place = *tensor.pieces.front().place;
      if (const auto number = numbers.find(place.file); number != numbers.end()) told.file = number->second;
      told.offset_bytes = place.offset_bytes;
      told.alignment_bytes = place.offset_bytes == 0 ? 0 : uint64_t{1} << std::countr_zero(place.offset_bytes);
    }
    inspection.tensors.push_back(std::move(told));
  }
  for (const format::DcpObject& object : metadata->objects)
    inspection.others.push_back(
        {.name = object.name,
         .text = object.place ? fmt::format("an object of {} bytes in {}", object.place->bytes, object.place->file)
                              : std::string("an object")});
  return inspection;
}

Result<Verification> verify_dcp(Handle& handle, const std::string& path, const VerifyOptions& options) {
  Verification result;
  result.path = path;
  if (Status done = DcpVerifier(handle, path, options, result).run(); !done)
    return std::unexpected(std::move(done).error());
  return result;
}

}  // namespace headrace::convert
