// SPDX-License-Identifier: Apache-2.0
// The metadata's places, sorted into files and compared with their lengths and with each other.
// See the header for threads.
// Owns what the header says.
#include "convert/dcp_folder.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "format/format_error.h"
#include "format/safetensors.h"
#include "os/small_file.h"

namespace headrace::convert {
namespace {

namespace fs = std::filesystem;
using format::DcpMetadata;
using format::DcpPlace;
using format::DcpTensor;
using Severity = CheckpointProblem::Severity;

constexpr uint64_t kMetadataBytesMax = uint64_t{1} << 30;
constexpr std::string_view kMetadataName = ".metadata";

class Opener {
 public:
  Opener(Handle& handle, DcpFolder& folder, const std::function<bool()>& interrupted, DcpProblems& problems)
      : handle_(handle), folder_(folder), interrupted_(interrupted), problems_(problems) {}

  Status run() {
    check_metadata();
    used_.resize(folder_.metadata.places.size());
    by_index_.resize(folder_.metadata.files.size());
    looked_.resize(folder_.metadata.files.size());
    for (size_t t = 0; t < folder_.metadata.tensors.size(); ++t) {
      const DcpTensor& tensor = folder_.metadata.tensors[t];
      for (const format::DcpPiece& piece : tensor.pieces)
        add({.name = tensor.name, .tensor = &tensor, .piece = &piece, .tensor_index = t}, piece.place);
      if (Status going_on = check_interrupted(); !going_on) return going_on;
    }
    for (const format::DcpObject& object : folder_.metadata.objects) {
      add({.name = object.name}, object.place);
      if (Status going_on = check_interrupted(); !going_on) return going_on;
    }
    for (auto& [name, file] : folder_.files)
      if (Status checked = check_overlaps(name, file); !checked) return checked;
    return {};
  }

 private:
  Status check_interrupted() const {
    if (!interrupted_ || !interrupted_()) return {};
    return std::unexpected(
        Error{.code = ErrorCode::interrupted, .operation = "read DCP folder", .detail = "it was stopped"});
  }

  void check_metadata() {
    for (const std::string& global : folder_.metadata.foreign_globals)
      problems_.tell(Severity::warning, kMetadataName, {}, 0,
                     fmt::format("it names {}, which no writer of torch puts there: torch.distributed.checkpoint.load "
                                 "would import and may run it",
                                 format::quote_name(global)));
    for (const DcpTensor& tensor : folder_.metadata.tensors) {
      if (!tensor.dtype)
        problems_.tell(Severity::warning, kMetadataName, tensor.name, 0,
                       fmt::format("its element type {} is not known here", format::quote_name(tensor.dtype_name)));
      if (std::string fault = format::check_dcp_pieces(tensor); !fault.empty())
        problems_.tell(Severity::error, kMetadataName, tensor.name, 0, std::move(fault));
    }
  }

  // Empty pieces of a tensor may begin at one element, and are then one piece for torch.
  void add(DcpPlaced placed, const std::optional<uint32_t>& index) {
    if (!index)
      return problems_.tell(Severity::error, kMetadataName, placed.name, 0, "it does not say where this lies");
    if (used_[*index]) return;
    used_[*index] = true;
    const DcpPlace& place = folder_.metadata.places[*index];
    placed.place = &place;
    const std::string& name = folder_.metadata.files[place.file];
    DcpFile* file = find(place.file);
    if (file == nullptr)
      return problems_.tell(Severity::error, name, placed.name, 0,
                            "the metadata say that this file holds it; there is no such file");
    if (place.offset_bytes > file->bytes || place.bytes > file->bytes - place.offset_bytes)
      return problems_.tell(Severity::error, name, placed.name, place.offset_bytes,
                            fmt::format("it should have {} bytes at offset {}; the file has {}", place.bytes,
                                        place.offset_bytes, file->bytes));
    file->placed.push_back(placed);
  }

  // Null if it is not there, or elsewhere.
  DcpFile* find(uint32_t index) {
    if (looked_[index]) return by_index_[index];
    looked_[index] = true;
    const std::string& said = folder_.metadata.files[index];
    const fs::path named(said);
    if (said.empty() || said.contains('\0') || named.is_absolute() ||
        std::ranges::find(named, fs::path("..")) != named.end())
      return nullptr;
    // "./a" is the file "a".
    const std::string name = named.lexically_normal().string();
    std::error_code error;
    const std::string path = dcp_path(folder_.path, name);
    if (!fs::is_regular_file(path, error)) return nullptr;
    const uint64_t bytes = fs::file_size(path, error);
    if (error) return nullptr;
    // A link to a folder gives its files ever more names. A link to a file is one of its own: caches give equal files one target.
    const fs::path real = fs::canonical(fs::path(path).parent_path(), error) / fs::path(path).filename();
    if (error) return nullptr;
    const auto [known, added] = by_path_.try_emplace(real.string(), nullptr);
    if (added) known->second = &folder_.files.try_emplace(name, DcpFile{.bytes = bytes}).first->second;
    return by_index_[index] = known->second;
  }

  Status check_overlaps(const std::string& name, DcpFile& file) {
    std::ranges::sort(file.placed, {},
                      [](const DcpPlaced& one) { return std::pair(one.place->offset_bytes, one.place->bytes); });
    std::vector<DcpPlaced> kept;
    std::optional<File> opened;
    uint64_t end = 0;
    for (size_t i = 0; i < file.placed.size();) {
      const uint64_t begin = file.placed[i].place->offset_bytes;
      size_t stop = i;
      while (stop < file.placed.size() && file.placed[stop].place->offset_bytes == begin)
        ++stop;
      if (Status going_on = check_interrupted(); !going_on) return going_on;
      if (stop - i > 1 && begin >= end) {
        if (!opened) {
          Result<File> found = File::open(dcp_path(folder_.path, name), FileMode::read);
          if (!found) return std::unexpected(std::move(found).error());
          opened = *std::move(found);
        }
        const Result<bool> one_file = is_safetensors(*opened, begin, file.bytes);
        if (!one_file) return std::unexpected(one_file.error());
        if (*one_file) {
          kept.insert(kept.end(), file.placed.begin() + static_cast<ptrdiff_t>(i),
                      file.placed.begin() + static_cast<ptrdiff_t>(stop));
          end = file.bytes;
          i = stop;
        }
      }
      for (; i < stop; ++i) {
        const DcpPlaced& one = file.placed[i];
        if (begin < end && one.place->bytes > 0) {
          problems_.tell(Severity::error, name, one.name, begin,
                         fmt::format("its {} bytes begin inside those of {}, which end at {}", one.place->bytes,
                                     format::quote_name(kept.back().name), end));
          continue;
        }
        kept.push_back(one);
        end = std::max(end, begin + one.place->bytes);
      }
    }
    file.placed = std::move(kept);
    return {};
  }

  Result<bool> is_safetensors(const File& file, uint64_t begin, uint64_t file_bytes) {
    const uint64_t bytes = std::min(file_bytes - begin, kSafetensorsFirstBytes);
    const Result<std::vector<std::byte>> first = read_bytes(handle_, file, begin, bytes);
    if (!first) return std::unexpected(first.error());
    return begins_like_safetensors(*first, file_bytes - begin);
  }

  Handle& handle_;
  DcpFolder& folder_;
  const std::function<bool()>& interrupted_;
  DcpProblems& problems_;
  std::vector<bool> used_;                   // by place
  std::vector<DcpFile*> by_index_;           // as the metadata count files
  std::map<std::string, DcpFile*> by_path_;  // without links to folders
  std::vector<bool> looked_;
};

}  // namespace

void DcpProblems::tell(Severity severity, std::string_view file, std::string_view tensor, uint64_t offset_bytes,
                       std::string text) {
  constexpr size_t kToldMax = 1000;
  if (all_.size() >= kToldMax) {
    ++more_;
    more_errors_ |= severity == Severity::error;
    return;
  }
  all_.push_back({.severity = severity,
                  .file = dcp_path(folder_, file),
                  .tensor = std::string(tensor.substr(0, kJoinedNameBytesMax)),
                  .offset_bytes = offset_bytes,
                  .text = std::move(text)});
}

std::vector<CheckpointProblem> DcpProblems::take() {
  if (more_ > 0)
    all_.push_back({.severity = more_errors_ ? Severity::error : Severity::warning,
                    .file = folder_,
                    .tensor = {},
                    .offset_bytes = 0,
                    .text = fmt::format("and {} more like these", more_)});
  return std::move(all_);
}

std::string dcp_path(const std::string& folder, std::string_view name) {
  return folder.ends_with('/') ? fmt::format("{}{}", folder, name) : fmt::format("{}/{}", folder, name);
}

Result<std::vector<std::byte>> read_bytes(Handle& handle, const File& file, uint64_t offset_bytes, uint64_t bytes) {
  std::vector<std::byte> target(bytes);
  if (bytes == 0) return target;
  Result<Transfer> transfer = handle.read(file, {.offset_bytes = offset_bytes, .target = {target.data(), bytes, {}}});
  if (!transfer) return std::unexpected(std::move(transfer).error());
  if (const Result<uint64_t> done = transfer->result(); !done) return std::unexpected(done.error());
  return target;
}

bool begins_like_safetensors(std::span<const std::byte> first, uint64_t rest_bytes) {
  return first.size() >= kSafetensorsFirstBytes && first[8] == std::byte{'{'} &&
         format::safetensors_header_bytes(first.first(8), rest_bytes).has_value();
}

Result<std::unique_ptr<DcpFolder>> DcpFolder::open(Handle& handle, const std::string& path,
                                                   const std::function<bool()>& interrupted, DcpProblems& problems) {
  const std::string metadata_path = dcp_path(path, kMetadataName);
  const Result<std::vector<std::byte>> bytes = os::read_small_file(metadata_path, kMetadataBytesMax);
  if (!bytes) return std::unexpected(bytes.error());
  auto folder = std::make_unique<DcpFolder>();
  folder->path = path;
  Result<DcpMetadata> metadata = format::parse_dcp_metadata(*bytes, interrupted);
  if (!metadata) {
    metadata.error().path = metadata_path;
    return std::unexpected(std::move(metadata).error());
  }
  folder->metadata = *std::move(metadata);
  if (Status opened = Opener(handle, *folder, interrupted, problems).run(); !opened)
    return std::unexpected(std::move(opened).error());
  return folder;
}

}  // namespace headrace::convert
