// SPDX-License-Identifier: Apache-2.0
// What a conversion takes and where it puts it: which tensors under which names in which files.
// One thread beside the handle's.
// Owns the opened source, the staging memory, and a folder under a temporary name until it is put in place.
#include <headrace/convert.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "convert/elements.h"
#include "convert/json.h"
#include "convert/output.h"
#include "convert/shard_folder.h"
#include "format/format_error.h"
#include "format/shard_index.h"
#include "format/utf8.h"
#include "os/error.h"

namespace headrace {
namespace {

using convert::OutputContext;
using convert::OutputTensor;

// Four slots, of which one is filled while the others are written.
constexpr uint64_t kStagingBytes = uint64_t{64} << 20;
constexpr const char* kConverting = "convert";

bool is_torch(CheckpointFormat format) { return format != CheckpointFormat::safetensors; }

std::unexpected<Error> refused(const std::string& path, std::string detail) {
  return std::unexpected(
      Error{.code = ErrorCode::invalid_argument, .operation = kConverting, .path = path, .detail = std::move(detail)});
}

class Converter {
 public:
  Converter(Handle& handle, const CheckpointSet& set, const ConvertOptions& options, Conversion& result)
      : handle_(handle), set_(set), options_(options), result_(result), sums_(set) {}

  Status run() {
    for (const CheckpointFile& file : set_.files())
      result_.source_bytes += file.file_bytes();
    Result<Buffer> staging = Buffer::create(kStagingBytes);
    if (!staging) return std::unexpected(std::move(staging).error());
    staging_ = *std::move(staging);
    if (takes_object()) return write_whole_object();
    if (Status listed = list_tensors(); !listed) return listed;
    collect_metadata();
    return options_.shard_bytes > 0 ? write_shards() : write_one_file();
  }

 private:
  bool takes_object() const {
    const bool changes = options_.dtype || options_.select || options_.rename || options_.shard_bytes > 0;
    return !changes && set_.files().size() == 1 && is_torch(set_.files().front().format()) &&
           is_torch(options_.format) && options_.others == ConvertOptions::Others::refuse;
  }

  OutputContext context(base::ProgressMeter& meter) {
    return {.handle = handle_,
            .set = set_,
            .options = options_,
            .meter = meter,
            .staging = {staging_.data(), staging_.bytes()},
            .sums = options_.verify == Verify::off ? nullptr : &sums_};
  }

  Status write_whole_object() {
    const CheckpointFile& file = set_.files().front();
    if (!file.little_endian())
      return refused(file.path(), "a big-endian machine wrote this file; load it with torch.load and save it again");
    base::ProgressMeter meter(options_.progress, file.file_bytes());
    OutputContext all = context(meter);
    const Result<uint64_t> bytes = convert::write_object(all, result_.target);
    if (!bytes) return std::unexpected(bytes.error());
    result_.files = {result_.target};
    result_.target_bytes = *bytes;
    result_.read_bytes = all.read_bytes;
    result_.tensors = file.tensors().size();
    return {};
  }

  Status list_tensors() {
    if (Status others = look_at_others(); !others) return others;
    std::unordered_map<std::string_view, std::string_view> sources;  // by new name
    tensors_.reserve(set_.tensors().size());
    for (const CheckpointSet::Tensor& at : set_.tensors()) {
      const StoredTensor& stored = set_.stored(at);
      if (options_.select && !options_.select(stored.name)) continue;
      Result<OutputTensor> tensor = plan_tensor(at);
      if (!tensor) return std::unexpected(std::move(tensor).error());
      total_bytes_ += tensor->bytes;
      tensors_.push_back(*std::move(tensor));
      const auto [before, added] = sources.try_emplace(tensors_.back().name, stored.name);
      if (!added)
        return refused(result_.source,
                       fmt::format("tensors {} and {} would both be called {}", format::quote_name(before->second),
                                   format::quote_name(stored.name), format::quote_name(tensors_.back().name)));
    }
    if (tensors_.empty())
      return refused(result_.source, options_.select ? "no tensor was selected" : "there is no tensor in it");
    return {};
  }

  Status look_at_others() {
    size_t count = 0;
    std::string examples;
    for (const CheckpointFile& file : set_.files()) {
      const bool all_listed = !options_.select || convert::unlisted_bytes(file) == 0;
      for (const StoredValue& value : file.other_values()) {
        constexpr size_t kExamples = 5;
        if (options_.select && !options_.select(value.name)) {
          // What is in it may well match.
          if (value.kind == StoredValue::Kind::shared || (value.kind == StoredValue::Kind::object && !all_listed))
            result_.notes.push_back(fmt::format("not looked into: {}, {}", format::quote_name(value.name), value.text));
          continue;
        }
        if (count++ < kExamples)
          examples +=
              fmt::format("{}{} = {}", examples.empty() ? "" : ", ", format::quote_name(value.name), value.text);
      }
    }
    if (count == 0) return {};
    const std::string what =
        fmt::format("{} values that are no tensors ({}{})", count, examples, count > 5 ? ", ..." : "");
    if (options_.others == ConvertOptions::Others::refuse)
      return refused(result_.source, fmt::format("it holds {}; the result would hold tensors alone. Leave them out by "
                                                 "--tensors-only",
                                                 what));
    result_.notes.push_back(fmt::format("left out: {}", what));
    return {};
  }

  Result<OutputTensor> plan_tensor(CheckpointSet::Tensor at) const {
    const StoredTensor& stored = set_.stored(at);
    const CheckpointFile& file = set_.files()[at.file];
    OutputTensor tensor = {.name = options_.rename ? options_.rename(stored.name) : stored.name,
                           .order = {.tensor = at, .as = std::nullopt},
                           .dtype = stored.dtype,
                           .shape = stored.shape};
    const auto refuse = [&](std::string_view why) {
      return refused(file.path(), fmt::format("tensor {}: {}", format::quote_name(stored.name), why));
    };
    if (options_.dtype && convert::is_float_target(stored.dtype) && stored.dtype != *options_.dtype) {
      tensor.order.as = options_.dtype;
      tensor.dtype = *options_.dtype;
    }
    const DTypeFacts& facts = dtype_facts(tensor.dtype);
    if (is_torch(file.format()) && stored.name.size() == kJoinedNameBytesMax)
      return refuse("its name, made of the keys that lead to it, is longer than can be told");
    if (options_.shard_bytes > 0 && format::valid_utf8_bytes(tensor.name) != tensor.name.size())
      return refuse("its name is not UTF-8, and the index of shards is");
    if (stored.dtype >= DType::quint8)
      return refuse("it is quantised, and its scale would be lost; torch's containers take the whole object over");
    if (is_torch(options_.format) ? facts.torch_bytes == 0 : facts.safetensors.empty())
      return refuse(fmt::format("{} has no element type {}", checkpoint_format_name(options_.format), facts.name));
    if (options_.format == CheckpointFormat::torch_legacy && facts.torch_storage.empty())
      return refuse(fmt::format("torch.load reads no {} from its legacy format", facts.name));
    // Two to a byte: torch counts bytes, safetensors elements.
    if (stored.dtype == DType::float4_e2m1fn_x2 && is_torch(file.format()) != is_torch(options_.format)) {
      if (tensor.shape.empty() || (!is_torch(file.format()) && tensor.shape.back() % 2 != 0))
        return refuse("its last dimension is no whole number of bytes");
      tensor.shape.back() = is_torch(file.format()) ? tensor.shape.back() * 2 : tensor.shape.back() / 2;
    }
    tensor.bytes = convert::ordered_bytes(set_, tensor.order);
    return tensor;
  }

  // Of a source that has some, for a target that may.
  void collect_metadata() {
    std::unordered_set<std::string_view> keys;
    for (const CheckpointFile& file : set_.files()) {
      if (!file.metadata()) continue;
      for (const auto& [key, value] : *file.metadata())
        if (keys.insert(key).second) metadata_.emplace_back(key, value);
    }
    // What transformers looks for before it opens a file.
    if (metadata_.empty() && is_torch(set_.files().front().format())) metadata_.emplace_back("format", "pt");
  }

  Status write_one_file() {
    base::ProgressMeter meter(options_.progress, total_bytes_);
    OutputContext all = context(meter);
    const Result<uint64_t> bytes = convert::write_tensors(all, result_.target, tensors_, metadata_);
    if (!bytes) return std::unexpected(bytes.error());
    result_.files = {result_.target};
    result_.target_bytes = *bytes;
    return finish(all);
  }

  // Torch's files have no place for it. That they are of torch is no loss.
  void note_lost_metadata() {
    std::string keys;
    for (const auto& [key, value] : metadata_)
      if (key != "format") keys += fmt::format("{}{}", keys.empty() ? "" : ", ", format::quote_name(key));
    if (!keys.empty() && is_torch(options_.format))
      result_.notes.push_back(fmt::format("left out: the metadata {}, for which torch's files have no place", keys));
  }

  Status finish(const OutputContext& context) {
    note_lost_metadata();
    result_.tensors = tensors_.size();
    result_.overflows = context.overflows;
    result_.read_bytes = context.read_bytes;
    if (context.overflows > 0)
      result_.notes.push_back(fmt::format("{} finite values are too large for {} and became infinite",
                                          context.overflows, dtype_facts(*options_.dtype).name));
    return {};
  }

  std::vector<std::vector<OutputTensor>> cut() {
    std::vector<std::vector<OutputTensor>> shards;
    uint64_t filled_bytes = 0;
    for (OutputTensor& tensor : tensors_) {
      if (shards.empty() ||
          (filled_bytes > 0 && tensor.bytes > options_.shard_bytes - std::min(filled_bytes, options_.shard_bytes))) {
        shards.emplace_back();
        filled_bytes = 0;
      }
      filled_bytes += tensor.bytes;
      shards.back().push_back(std::move(tensor));
    }
    return shards;
  }

  Status write_shards() {
    const std::string start = is_torch(options_.format) ? "pytorch_model" : "model";
    const std::string suffix = is_torch(options_.format) ? ".bin" : ".safetensors";
    Result<convert::ShardFolder> folder = convert::ShardFolder::create(result_.target);
    if (!folder) return std::unexpected(std::move(folder).error());
    base::ProgressMeter meter(options_.progress, total_bytes_);
    OutputContext all = context(meter);
    const std::vector<std::vector<OutputTensor>> shards = cut();
    format::ShardIndexText index = {.files_by_tensor = {}, .total_bytes = total_bytes_};
    size_t tensors = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
      const std::string name =
          shards.size() == 1 ? start + suffix : fmt::format("{}-{:05}-of-{:05}{}", start, i + 1, shards.size(), suffix);
      Result<uint64_t> bytes = convert::write_tensors(all, folder->path(name), shards[i], metadata_);
      if (!bytes) {
        if (bytes.error().path == folder->path(name)) bytes.error().path = folder->final_path(name);
        return std::unexpected(std::move(bytes).error());
      }
      result_.target_bytes += *bytes;
      result_.files.push_back(folder->final_path(name));
      for (const OutputTensor& tensor : shards[i])
        index.files_by_tensor.emplace_back(tensor.name, name);
      tensors += shards[i].size();
    }
    if (shards.size() > 1) {
      std::ranges::sort(index.files_by_tensor);
      const std::string name = start + suffix + ".index.json";
      if (Status written = folder->write_text(name, format::write_shard_index(index)); !written) return written;
      result_.index = folder->final_path(name);
    }
    if (Status committed = folder->commit(options_.durability); !committed) return committed;
    const Status finished = finish(all);
    result_.tensors = tensors;
    return finished;
  }

  Handle& handle_;
  const CheckpointSet& set_;
  const ConvertOptions& options_;
  Conversion& result_;
  convert::StorageSums sums_;
  Buffer staging_;
  std::vector<OutputTensor> tensors_;
  Metadata metadata_;
  uint64_t total_bytes_ = 0;
};

constexpr const char* kInTheWay = "there is such a file already; --overwrite replaces it once the new one is whole";

Status check_target(const std::string& target, const ConvertOptions& options) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(target, ignored);
  if (!std::filesystem::exists(status) || options.shard_bytes > 0) return {};
  Error error = os::system_error(kConverting, target, std::filesystem::is_directory(status) ? EISDIR : EEXIST);
  if (std::filesystem::is_directory(status))
    error.detail = "this is a folder; name a file in it, or ask for shards";
  else if (options.existing == Existing::refuse)
    error.detail = kInTheWay;
  else
    return {};
  return std::unexpected(std::move(error));
}

}  // namespace

Result<Conversion> convert_checkpoint(Handle& handle, const std::string& source, const std::string& target,
                                      const ConvertOptions& options) {
  if (options.dtype && !convert::is_float_target(*options.dtype))
    return refused(source, fmt::format("tensors can be turned into float64, float32, float16 and bfloat16, not into {}",
                                       dtype_facts(*options.dtype).name));
  if (Status good = os::check_path(kConverting, target); !good) return std::unexpected(std::move(good).error());
  if (Status free = check_target(target, options); !free) return std::unexpected(std::move(free).error());
  Result<CheckpointSet> set = CheckpointSet::open(
      handle, source,
      {.verify = options.verify, .interrupted = options.progress.interrupted, .protocols = PickleProtocols::later});
  if (!set) return std::unexpected(std::move(set).error());
  const std::vector<CheckpointProblem> problems = set->problems();
  const auto wrong = std::ranges::find(problems, CheckpointProblem::Severity::error, &CheckpointProblem::severity);
  if (wrong != problems.end())
    return std::unexpected(
        Error{.code = ErrorCode::corrupt,
              .operation = kConverting,
              .path = wrong->file,
              .detail = fmt::format("tensor {}: {}", format::quote_name(wrong->tensor), wrong->text)});
  Conversion result;
  result.source = source;
  for (const CheckpointProblem& problem : problems)
    result.notes.push_back(fmt::format("{}: {}", problem.file, problem.text));
  result.target = target;
  Status done = Converter(handle, *set, options, result).run();
  if (done) return result;
  if (done.error().errno_value == EEXIST) done.error().detail = kInTheWay;  // it came meanwhile
  return std::unexpected(std::move(done).error());
}

std::string to_json(const Conversion& conversion) {
  convert::Json json = convert::head("headrace.convert");
  json["source"] = conversion.source;
  json["target"] = conversion.target;
  json["files"] = conversion.files;
  json["index"] = conversion.index ? convert::Json(*conversion.index) : convert::Json();
  json["tensors"] = conversion.tensors;
  json["source_bytes"] = conversion.source_bytes;
  json["read_bytes"] = conversion.read_bytes;
  json["target_bytes"] = conversion.target_bytes;
  json["overflows"] = conversion.overflows;
  json["notes"] = conversion.notes;
  return convert::text(json);
}

}  // namespace headrace
