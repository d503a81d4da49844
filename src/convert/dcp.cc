// SPDX-License-Identifier: Apache-2.0
// What .metadata says, and whether the files beside it hold that.
// See the header for threads.
// Owns the opened files for the time of a call.
#include "convert/dcp.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/progress_meter.h"
#include "convert/dcp_archive.h"
#include "convert/dcp_folder.h"
#include "convert/range_stream.h"
#include "format/dcp_metadata.h"
#include "format/format_error.h"
#include "format/safetensors.h"
#include "format/torch_legacy.h"
#include "format/torch_zip_reader.h"

namespace headrace::convert {
namespace {

namespace fs = std::filesystem;
using base::ProgressMeter;
using format::DcpTensor;
using Severity = CheckpointProblem::Severity;

// Of one piece's archive, which has a handful of records.
constexpr uint64_t kDirectoryBytesMax = uint64_t{64} << 20;
// So many names are told once only: problems beyond these are counted.
constexpr size_t kForeignMax = 1000;
// Of the pieces that are read in one go.
constexpr uint64_t kListedBytesMax = uint64_t{64} << 20;

std::string dtype_and_shape(std::string_view dtype, std::span<const uint64_t> shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

// Reads one file of the folder, piece by piece.
class DcpFileCheck {
 public:
  DcpFileCheck(Handle& handle, const DcpFolder& folder, const std::string& name, const DcpFile& file,
               const VerifyOptions& options, DcpProblems& problems, std::vector<DcpStats>& stats,
               std::set<std::string, std::less<>>& foreign)
      : handle_(handle),
        folder_(folder),
        name_(name),
        file_(file),
        options_(options),
        problems_(problems),
        stats_(stats),
        foreign_(foreign) {}

  Result<VerifiedFile> run(ProgressMeter& meter) {
    const std::string path = dcp_path(folder_.path, name_);
    Result<File> file = File::open(path, FileMode::read);
    if (!file) return std::unexpected(std::move(file).error());
    VerifiedFile facts = {.path = path, .format = "dcp", .bytes = file_.bytes};
    while (next_ < file_.placed.size()) {
      items_.clear();
      if (Status listed = list(*file); !listed) return std::unexpected(std::move(listed).error());
      if (Status read = read_listed(*file, meter, facts); !read) return std::unexpected(std::move(read).error());
    }
    tell_unsummed();
    return facts;
  }

 private:
  struct Item {
    uint64_t offset_bytes = 0;
    uint64_t bytes = 0;
    const DcpPlaced* placed = nullptr;
    std::optional<DcpArchive> archive;
    [[nodiscard]] bool summed() const { return archive && archive->has_sums() && archive->unread_record().empty(); }
  };

  void tell(Severity severity, const DcpPlaced& placed, std::string text) {
    problems_.tell(severity, name_, placed.name, placed.place->offset_bytes, std::move(text));
  }

  void fault(const DcpPlaced& placed, std::string text) { tell(Severity::error, placed, std::move(text)); }

  // What was learnt of a piece is told and let go once the next one begins: an object's pickle has as many names as it likes.
  Status read_listed(const File& file, ProgressMeter& meter, VerifiedFile& facts) {
    size_t told = 0;
    const auto tell_until = [&](size_t end) {
      for (; told < end; ++told) {
        if (items_[told].archive) tell_of(*items_[told].placed, *items_[told].archive);
        items_[told].archive.reset();
      }
    };
    std::vector<FileRange> ranges;
    for (const Item& item : items_)
      ranges.push_back({.file = 0, .offset_bytes = item.offset_bytes, .bytes = item.bytes});
    Result<RangeStream> stream = RangeStream::create(handle_, {file}, std::move(ranges), options_.progress.interrupted,
                                                     RangeStream::kSlotsAlone);
    if (!stream) return std::unexpected(std::move(stream).error());
    while (true) {
      const Result<std::optional<RangePiece>> piece = stream->next();
      if (!piece) return std::unexpected(piece.error());
      tell_until(*piece ? (*piece)->item : items_.size());
      if (!*piece) return {};
      meter.add(facts.path, (*piece)->bytes.size());
      Item& item = items_[(*piece)->item];
      (item.summed() ? facts.summed_bytes : facts.read_bytes) += (*piece)->bytes.size();
      if (item.archive && item.archive->fault().empty() && !item.archive->add((*piece)->offset_bytes, (*piece)->bytes))
        fault(*item.placed, item.archive->fault());
    }
  }

  // What each of the next pieces is. Those that are nothing known are not read: that is told already.
  Status list(const File& file) {
    listed_bytes_ = 0;
    for (; next_ < file_.placed.size() && listed_bytes_ < kListedBytesMax; ++next_) {
      const DcpPlaced& placed = file_.placed[next_];
      const format::DcpPlace& place = *placed.place;
      if (options_.progress.interrupted && options_.progress.interrupted())
        return std::unexpected(
            Error{.code = ErrorCode::interrupted, .operation = "verify", .detail = "it was stopped"});
      if (place.offset_bytes < safetensors_end_) {
        fault(placed, fmt::format("it begins inside a safetensors file, which ends at {}", safetensors_end_));
        continue;
      }
      if (place.transformed) {
        transformed_ = true;
        add(placed, place.bytes);
        continue;
      }
      Result<std::vector<std::byte>> first =
          read_bytes(handle_, file, place.offset_bytes,
                     std::min<uint64_t>(file_.bytes - place.offset_bytes, format::kLegacyMagicBytesMax));
      if (!first) return std::unexpected(std::move(first).error());
      if (begins_like_safetensors(*first, file_.bytes - place.offset_bytes)) {
        size_t stop = next_ + 1;
        while (stop < file_.placed.size() && file_.placed[stop].place->offset_bytes == place.offset_bytes)
          ++stop;
        if (Status checked = list_safetensors(file, std::span(file_.placed).subspan(next_, stop - next_)); !checked)
          return checked;
        safetensors_end_ = file_.bytes;
        next_ = stop - 1;
        continue;
      }
      first->resize(std::min<uint64_t>(first->size(), place.bytes));
      Status listed;
      if (format::is_zip(*first)) {
        listed = list_zip(file, placed);
      } else if (format::is_torch_legacy(*first)) {
        listed = list_legacy(file, placed);
      } else {
        fault(placed, fmt::format("it is no archive of torch.save: its {} bytes begin with [{}]", place.bytes,
                                  fmt::join(std::span(*first).first(std::min<size_t>(first->size(), 4)), " ")));
      }
      if (!listed) return listed;
    }
    return {};
  }

  void add(const DcpPlaced& placed, uint64_t bytes) {
    items_.push_back({.offset_bytes = placed.place->offset_bytes, .bytes = bytes, .placed = &placed, .archive = {}});
    listed_bytes_ += sizeof(Item);
  }

  Status list_zip(const File& file, const DcpPlaced& placed) {
    const format::DcpPlace& place = *placed.place;
    const auto damaged = [&](const Error& error) -> Status {
      fault(placed, error.detail);
      return {};
    };
    const uint64_t tail_bytes = std::min(place.bytes, format::kZipTailBytesMax);
    Result<std::vector<std::byte>> tail =
        read_bytes(handle_, file, place.offset_bytes + place.bytes - tail_bytes, tail_bytes);
    if (!tail) return std::unexpected(std::move(tail).error());
    const Result<format::ZipDirectory> where = format::find_zip_directory(*tail, place.bytes);
    if (!where) return damaged(where.error());
    if (where->bytes > kDirectoryBytesMax)
      return damaged(
          Error{.code = ErrorCode::corrupt,
                .detail = fmt::format("the directory of its archive is larger than {} bytes", kDirectoryBytesMax)});
    Result<std::vector<std::byte>> directory =
        read_bytes(handle_, file, place.offset_bytes + where->begin, where->bytes);
    if (!directory) return std::unexpected(std::move(directory).error());
    Result<std::vector<format::ZipEntry>> entries = format::parse_zip_directory(*directory, *where);
    if (!entries) return damaged(entries.error());
    Result<format::TorchZipContents> contents = format::torch_zip_contents_of(*entries);
    if (!contents) return damaged(contents.error());
    DcpStats* stats = stats_.empty() || placed.tensor == nullptr ? nullptr : &stats_[placed.tensor_index];
    add(placed, place.bytes);
    listed_bytes_ += where->bytes;
    items_.back().archive.emplace(*std::move(entries), *std::move(contents), placed, stats);
    return {};
  }

  // torch.save writes these only when it is told to.
  Status list_legacy(const File& file, const DcpPlaced& placed) {
    const format::DcpPlace& place = *placed.place;
    const uint64_t pickles_bytes_max = placed.tensor != nullptr ? kTensorPickleBytesMax : kObjectPickleBytesMax;
    Result<std::vector<std::byte>> bytes =
        read_bytes(handle_, file, place.offset_bytes, std::min(place.bytes, pickles_bytes_max));
    if (!bytes) return std::unexpected(std::move(bytes).error());
    const auto parse = [](std::span<const std::byte> rest) {
      return parse_pickle(rest, {.unknown_globals = UnknownGlobals::collect, .protocols = PickleProtocols::later});
    };
    const Result<uint64_t> lead =
        format::torch_legacy_lead_bytes(*bytes, [&](std::span<const std::byte> rest) -> Result<uint64_t> {
          const Result<Pickle> pickle = parse(rest);
          if (!pickle) return std::unexpected(pickle.error());
          return pickle->consumed_bytes();
        });
    if (!lead) {
      fault(placed, lead.error().detail);
      return {};
    }
    legacy_ = true;
    add(placed, place.bytes);
    const Result<Pickle> object = parse(std::span(*bytes).subspan(*lead));
    const uint64_t keys_begin = object ? *lead + object->consumed_bytes() : 0;
    const Result<Pickle> keys = object ? parse(std::span(*bytes).subspan(keys_begin)) : object;
    // Objects may be anything that Python can pickle, and as long.
    if (placed.tensor == nullptr && (!object || (!keys && bytes->size() < place.bytes))) {
      tell_unread_pickle(placed);
      return {};
    }
    if (!keys) {
      fault(placed, keys.error().detail);
      return {};
    }
    const format::DcpContent content = format::describe_dcp_piece(*object);
    tell_foreign(placed, content);
    std::string text = format::compare_dcp_piece(content, placed.tensor, placed.piece);
    if (text.empty()) {
      const std::optional<uint64_t> storages = format::legacy_storages_bytes(*object, *keys);
      const uint64_t left = place.bytes - keys_begin - keys->consumed_bytes();
      if (!storages)
        text = "the list of keys in its archive is not one of its storages";
      else if (*storages > left)
        text = fmt::format("its storages of {} bytes are longer than what is left of its archive, {} bytes", *storages,
                           left);
    }
    if (!text.empty()) fault(placed, std::move(text));
    return {};
  }

  // FileSystemWriter(serialization_format=SAFETENSORS): all tensors of a file in one safetensors file at its end, named as
  // they are; the metadata tell where that begins.
  Status list_safetensors(const File& file, std::span<const DcpPlaced> group) {
    const uint64_t begin = group.front().place->offset_bytes, bytes = file_.bytes - begin;
    Result<std::vector<std::byte>> first = read_bytes(handle_, file, begin, format::kSafetensorsLengthBytes);
    if (!first) return std::unexpected(std::move(first).error());
    const Result<uint64_t> json_bytes = format::safetensors_header_bytes(*first, bytes);
    if (!json_bytes) {
      fault(group.front(), json_bytes.error().detail);
      return {};
    }
    Result<std::vector<std::byte>> json =
        read_bytes(handle_, file, begin + format::kSafetensorsLengthBytes, *json_bytes);
    if (!json) return std::unexpected(std::move(json).error());
    const Result<format::SafetensorsHeader> header = format::parse_safetensors(*json, bytes);
    if (!header) {
      fault(group.front(), header.error().detail);
      return {};
    }
    safetensors_ = true;
    add(group.front(), bytes);
    std::map<std::string_view, const format::SafetensorsTensor*> there;
    for (const format::SafetensorsTensor& tensor : header->tensors)
      there.emplace(tensor.name, &tensor);
    for (const DcpPlaced& placed : group) {
      const auto found = there.find(placed.name);
      if (placed.tensor == nullptr || found == there.end()) {
        fault(placed, "the metadata say that the safetensors file at this place holds it, and it does not");
        continue;
      }
      const format::SafetensorsTensor& tensor = *found->second;
      // Of elements below a byte safetensors counts more than torch.
      const std::string_view dtype = dtype_facts(tensor.dtype).name;
      if (dtype == placed.tensor->dtype_name &&
          (tensor.shape == placed.piece->shape || dtype_facts(tensor.dtype).bits % 8 != 0))
        continue;
      fault(placed,
            fmt::format("its safetensors file holds {}, and the metadata say {}", dtype_and_shape(dtype, tensor.shape),
                        dtype_and_shape(placed.tensor->dtype_name, placed.piece->shape)));
    }
    return {};
  }

  void tell_unread_pickle(const DcpPlaced& placed) {
    tell(Severity::warning, placed,
         "the pickle of its archive was not looked into: it is longer than is read here, or of a kind that torch.save "
         "does not write; torch.distributed.checkpoint.load would run it");
  }

  void tell_foreign(const DcpPlaced& placed, const format::DcpContent& content) {
    for (const std::string& global : content.foreign_globals) {
      // As it is told: names may be as long as a pickle.
      std::string quoted = format::quote_name(global);
      if (foreign_.contains(quoted)) continue;
      tell(Severity::warning, placed,
           fmt::format("the pickle of its archive names {}, which is not among the names that torch's weights_only "
                       "admits: {}",
                       quoted,
                       placed.tensor == nullptr ? "torch.distributed.checkpoint.load would import and may run it"
                                                : "torch.distributed.checkpoint.load refuses it"));
      if (foreign_.size() < kForeignMax) foreign_.insert(std::move(quoted));
    }
  }

  void tell_of(const DcpPlaced& placed, const DcpArchive& archive) {
    if (!archive.unread_record().empty())
      tell(Severity::warning, placed,
           fmt::format("record {} of its archive is compressed or encrypted, as torch.save never does, and was not "
                       "checked",
                       format::quote_name(archive.unread_record())));
    if (!archive.content() && archive.fault().empty() && archive.unread_record().empty()) tell_unread_pickle(placed);
    if (!archive.content()) return;
    tell_foreign(placed, *archive.content());
    if (placed.tensor != nullptr && archive.content()->kind != format::DcpContent::Kind::tensor &&
        archive.fault().empty())
      tell(Severity::warning, placed,
           "it is a tensor of a kind that is not looked into here: its shape and element type were not compared with "
           "the metadata");
  }

  void tell_unsummed() {
    const auto note = [&](std::string_view what) {
      problems_.tell(Severity::note, name_, {}, 0, fmt::format("{}: they could be read, and hold no checksums", what));
    };
    if (transformed_) note("pieces of it went through transformations of the writer's user");
    if (legacy_) note("pieces of it are legacy archives of torch.save");
    if (safetensors_) note("its tensors are a safetensors file");
  }

  Handle& handle_;
  const DcpFolder& folder_;
  const std::string& name_;
  const DcpFile& file_;
  const VerifyOptions& options_;
  DcpProblems& problems_;
  std::vector<DcpStats>& stats_;                 // by tensor; none: they are not wanted
  std::set<std::string, std::less<>>& foreign_;  // names that were told
  std::vector<Item> items_;
  size_t next_ = 0;            // the first piece that was not listed
  uint64_t listed_bytes_ = 0;  // of items_ and their directories
  uint64_t safetensors_end_ = 0;
  bool transformed_ = false, legacy_ = false, safetensors_ = false;
};

// A folder that was saved with use_collectives=False has no .metadata and __0.metadata, or more of them.
bool has_metadata_of_ranks(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(dcp_path(path, "__0.metadata"), error);
}

bool holds_other_checkpoint(const std::string& path) {
  const Result<CheckpointFiles> found = find_checkpoint_files(path);
  return found || (found.error().code != ErrorCode::unavailable && found.error().errno_value != ENOENT);
}

// What may be named, and is no folder with a .metadata in it.
Status check_dcp_path(const std::string& path) {
  constexpr std::string_view kFinding = "find checkpoint";
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const std::string folder = fs::path(path).parent_path().string();
    return std::unexpected(
        Error{.code = ErrorCode::invalid_argument,
              .operation = std::string(kFinding),
              .path = path,
              .detail = fmt::format("this is a file of a folder of torch.distributed.checkpoint: name the folder, {}",
                                    folder.empty() ? "." : folder)});
  }
  if (fs::exists(fs::symlink_status(dcp_path(path, ".metadata"), error))) return {};
  return std::unexpected(Error{
      .code = ErrorCode::unavailable,
      .operation = std::string(kFinding),
      .path = path,
      .detail = "this is a folder of torch.distributed.checkpoint that was saved with use_collectives=False: each "
                "rank has a __N.metadata of its own, and only folders with one .metadata are read"});
}

Status verify_folder(Handle& handle, const std::string& path, const VerifyOptions& options, DcpProblems& problems,
                     Verification& result) {
  Result<std::unique_ptr<DcpFolder>> opened = DcpFolder::open(handle, path, options.progress.interrupted, problems);
  if (!opened && opened.error().code != ErrorCode::corrupt) return std::unexpected(std::move(opened).error());
  if (!opened) {
    problems.tell(Severity::error, ".metadata", {}, opened.error().offset_bytes, opened.error().detail);
    return {};
  }
  const DcpFolder& folder = **opened;
  uint64_t total_bytes = 0;
  for (const auto& [name, file] : folder.files)
    for (const DcpPlaced& one : file.placed)
      total_bytes += one.place->bytes;
  ProgressMeter meter(options.progress, total_bytes);
  const bool counted = options.stats == VerifyOptions::Stats::per_tensor;
  std::vector<DcpStats> stats(counted ? folder.metadata.tensors.size() : 0);
  std::set<std::string, std::less<>> foreign;
  for (const auto& [name, file] : folder.files) {
    Result<VerifiedFile> checked =
        DcpFileCheck(handle, folder, name, file, options, problems, stats, foreign).run(meter);
    if (!checked) return std::unexpected(std::move(checked).error());
    result.files.push_back(*std::move(checked));
  }
  for (size_t t = 0; t < stats.size(); ++t)
    result.stats.push_back(stats_of(folder.metadata.tensors[t], stats[t]));
  return {};
}

}  // namespace

bool is_dcp(const std::string& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    const std::string name = fs::path(path).filename().string(), folder = fs::path(path).parent_path().string();
    if (name == ".metadata" || (name.starts_with("__") && name.ends_with(".metadata"))) return true;
    return name.ends_with(".distcp") && fs::exists(dcp_path(folder.empty() ? "." : folder, ".metadata"), error);
  }
  if (!fs::is_directory(path, error)) return false;
  if (fs::is_regular_file(dcp_path(path, ".metadata"), error)) return true;
  const bool named = fs::exists(fs::symlink_status(dcp_path(path, ".metadata"), error));
  return (named || has_metadata_of_ranks(path)) && !holds_other_checkpoint(path);
}

Result<Inspection> inspect_dcp(Handle& handle, const std::string& path, const InspectOptions& options) {
  if (Status good = check_dcp_path(path); !good) return std::unexpected(std::move(good).error());
  DcpProblems problems(path);
  const Result<std::unique_ptr<DcpFolder>> opened = DcpFolder::open(handle, path, options.interrupted, problems);
  if (!opened) return std::unexpected(opened.error());
  const DcpFolder& folder = **opened;
  Inspection inspection;
  inspection.path = path;
  inspection.problems = problems.take();
  // Of each place: the file that holds it.
  std::map<const format::DcpPlace*, uint32_t> numbers;
  for (const auto& [name, file] : folder.files) {
    const auto number = static_cast<uint32_t>(inspection.files.size());
    InspectedFile& told = inspection.files.emplace_back(
        InspectedFile{.path = dcp_path(path, name), .format = "dcp", .bytes = file.bytes});
    for (const DcpPlaced& one : file.placed) {
      numbers.emplace(one.place, number);
      ++told.storages;
      told.storage_bytes += one.place->bytes;
    }
  }
  for (const DcpTensor& tensor : folder.metadata.tensors) {
    InspectedTensor told = {.name = tensor.name, .dtype = tensor.dtype.value_or(DType::uint8), .shape = tensor.shape};
    const uint64_t elements = element_count(tensor.shape);
    if (__builtin_mul_overflow(elements, dtype_facts(told.dtype).torch_bytes, &told.bytes)) told.bytes = 0;
    told.pieces = tensor.pieces.size();
    told.strides.resize(tensor.shape.size());
    uint64_t stride = 1;
    for (size_t d = tensor.shape.size(); d-- > 0; stride *= std::max<uint64_t>(tensor.shape[d], 1))
      told.strides[d] = static_cast<int64_t>(stride);
    if (!tensor.pieces.empty() && tensor.pieces.front().place) {
      const format::DcpPlace& place = folder.metadata.places[*tensor.pieces.front().place];
      if (const auto number = numbers.find(&place); number != numbers.end()) told.file = number->second;
      told.offset_bytes = place.offset_bytes;
      told.alignment_bytes = place.offset_bytes == 0 ? 0 : uint64_t{1} << std::countr_zero(place.offset_bytes);
    }
    inspection.tensors.push_back(std::move(told));
  }
  for (const format::DcpObject& object : folder.metadata.objects) {
    const format::DcpPlace* place = object.place ? &folder.metadata.places[*object.place] : nullptr;
    inspection.others.push_back({.name = object.name,
                                 .text = place != nullptr && numbers.contains(place)
                                             ? fmt::format("an object of {} bytes in {}", place->bytes,
                                                           format::quote_name(folder.metadata.files[place->file]))
                                             : std::string("an object")});
  }
  return inspection;
}

Result<Verification> verify_dcp(Handle& handle, const std::string& path, const VerifyOptions& options) {
  if (Status good = check_dcp_path(path); !good) return std::unexpected(std::move(good).error());
  Verification result;
  result.path = path;
  DcpProblems problems(path);
  if (Status done = verify_folder(handle, path, options, problems, result); !done)
    return std::unexpected(std::move(done).error());
  result.problems = problems.take();
  return result;
}

}  // namespace headrace::convert
