// SPDX-License-Identifier: Apache-2.0
// A file read from front to back: every record against its sum, what stands in front of each storage against the rest.
// One thread beside the handle's.
// Owns what it finds until it is returned.
#include <headrace/verify.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/crc32.h"
#include "base/progress_meter.h"
#include "convert/dcp.h"
#include "convert/elements.h"
#include "convert/range_stream.h"
#include "convert/storage_sums.h"
#include "convert/tensor_stream.h"
#include "format/format_error.h"
#include "format/utf8.h"

namespace headrace {
namespace {

using base::ProgressMeter;
using convert::FileRange;
using convert::RangePiece;
using convert::RangeStream;

// Each element once and nothing between them, in whatever order.
bool lies_side_by_side(const StoredTensor& tensor) {
  std::vector<size_t> dimensions;
  for (size_t d = 0; d < tensor.shape.size(); ++d)
    if (tensor.shape[d] > 1) dimensions.push_back(d);
  std::ranges::sort(dimensions, {}, [&](size_t d) { return tensor.strides[d]; });
  uint64_t expected = 1;
  for (const size_t d : dimensions) {
    if (static_cast<uint64_t>(tensor.strides[d]) != expected) return false;
    expected *= tensor.shape[d];
  }
  return true;
}

// The elements of one tensor as they come, in pieces that may cut them.
class StatsFeed {
 public:
  StatsFeed(const StoredTensor& tensor, TensorStats& stats)
      : begin_(tensor.storage_offset_bytes),
        end_(begin_ + convert::extent_bytes(tensor)),
        width_(convert::stats_element_bytes(tensor.dtype) * (tensor.conjugate ? 2 : 1)),
        tensor_(&tensor),
        told_(&stats) {
    if (width_ == 0)
      stats.why_not = "elements of less than a byte are not counted";
    else if (tensor.bytes != 0 && !lies_side_by_side(tensor))
      stats.why_not = "its elements do not lie side by side";
  }

  // Bytes of the storage from `offset` on.
  void add(uint64_t offset, std::span<const std::byte> bytes) {
    if (!told_->why_not.empty()) return;
    const uint64_t from = std::max(offset, begin_);
    const uint64_t to = std::min(offset + bytes.size(), end_);
    if (from >= to) return;
    std::span<const std::byte> mine = bytes.subspan(from - offset, to - from);
    if (!cut_.empty()) {
      const size_t missing = std::min<size_t>(width_ - cut_.size(), mine.size());
      cut_.insert(cut_.end(), mine.begin(), mine.begin() + static_cast<ptrdiff_t>(missing));
      mine = mine.subspan(missing);
      if (cut_.size() < width_) return;
      count(cut_);
      cut_.clear();
    }
    const size_t whole = mine.size() / width_ * width_;
    count(mine.first(whole));
    cut_.assign(mine.begin() + static_cast<ptrdiff_t>(whole), mine.end());
  }

  void finish() {
    told_->elements = stats_.elements;
    told_->nan = stats_.nan;
    told_->inf = stats_.inf;
    told_->zero = stats_.zero;
    if (stats_.min <= stats_.max) {
      told_->min = stats_.min;
      told_->max = stats_.max;
    }
  }

 private:
  void count(std::span<const std::byte> elements) {
    if (tensor_->conjugate || tensor_->negative) {
      signed_.assign(elements.begin(), elements.end());
      if (tensor_->conjugate) convert::negate(tensor_->dtype, signed_, convert::Negate::imaginary);
      if (tensor_->negative) convert::negate(tensor_->dtype, signed_, convert::Negate::all);
      elements = signed_;
    }
    convert::add_stats(tensor_->dtype, elements, stats_);
  }

  uint64_t begin_, end_;
  uint32_t width_;  // of what is counted at once
  const StoredTensor* tensor_;
  TensorStats* told_;
  convert::ElementStats stats_;
  std::vector<std::byte> cut_;
  std::vector<std::byte> signed_;
};

class FileCheck {
 public:
  FileCheck(Handle& handle, const CheckpointFile& file, const VerifyOptions& options, Verification& result)
      : handle_(handle), file_(file), options_(options), result_(result) {}

  Status run(ProgressMeter& meter) {
    const Result<std::vector<StoredBytes>> records =
        file_.other_records(handle_, {.verify = Verify::automatic, .interrupted = options_.progress.interrupted});
    if (!records) return tell_or_fail(records.error());
    check_records(*records);
    list_parts(*records);
    if (options_.stats == VerifyOptions::Stats::per_tensor) list_tensors();
    Result<File> opened = File::from_descriptor(file_.descriptor());
    if (!opened) return std::unexpected(std::move(opened).error());
    std::vector<FileRange> ranges;
    for (const Part& part : parts_)
      ranges.push_back({.file = 0, .offset_bytes = part.offset_bytes, .bytes = part.bytes});
    Result<RangeStream> stream = RangeStream::create(handle_, {*std::move(opened)}, std::move(ranges),
                                                     options_.progress.interrupted, RangeStream::kSlotsAlone);
    if (!stream) return std::unexpected(std::move(stream).error());
    VerifiedFile facts = {.path = file_.path(),
                          .format = std::string(checkpoint_format_name(file_.format())),
                          .bytes = file_.file_bytes()};
    while (true) {
      const Result<std::optional<RangePiece>> piece = stream->next();
      if (!piece) return with_path(piece.error());
      if (!*piece) break;
      if (!take(**piece, facts))
        return with_path({.code = ErrorCode::interrupted, .operation = "read", .detail = "it was stopped"});
      meter.add(file_.path(), (*piece)->bytes.size());
    }
    // Records of no bytes never came by.
    for (const Part& part : parts_)
      if (part.bytes == 0 && part.crc32.value_or(0) != 0) tell_sum(part, 0);
    for (std::vector<StatsFeed>& feeds : feeds_)
      for (StatsFeed& feed : feeds)
        feed.finish();
    for (const auto& [copy, counted] : counted_as_) {
      std::string name = std::move(result_.stats[copy].name);
      result_.stats[copy] = result_.stats[counted];
      result_.stats[copy].name = std::move(name);
    }
    result_.files.push_back(std::move(facts));
    return {};
  }

 private:
  struct Part {
    uint64_t offset_bytes = 0;
    uint64_t bytes = 0;
    std::optional<uint32_t> crc32;
    std::optional<uint32_t> storage;  // it is this storage
    bool lead = false;                // it stands in front of that storage
    std::string_view record;          // the name of a record that is none
  };

  void list_parts(const std::vector<StoredBytes>& records) {
    for (uint32_t i = 0; i < file_.storages().size(); ++i) {
      const StoredBytes& one = file_.storages()[i];
      if (one.lead_bytes != 0)
        parts_.push_back(
            {.offset_bytes = one.offset_bytes - one.lead_bytes, .bytes = one.lead_bytes, .storage = i, .lead = true});
      parts_.push_back({.offset_bytes = one.offset_bytes, .bytes = one.bytes, .crc32 = one.crc32, .storage = i});
    }
    for (const StoredBytes& record : records)
      parts_.push_back(
          {.offset_bytes = record.offset_bytes, .bytes = record.bytes, .crc32 = record.crc32, .record = record.key});
    std::ranges::sort(parts_, {}, [](const Part& part) { return std::pair(part.offset_bytes, !part.lead); });
  }

  // What torch.load refuses, beside sums: it looks at every record's name before it reads one.
  void check_records(const std::vector<StoredBytes>& records) {
    constexpr std::string_view kPickle = "/data.pkl";
    const auto pickle =
        std::ranges::find_if(records, [&](const StoredBytes& one) { return one.key.ends_with(kPickle); });
    if (pickle == records.end()) return;
    const std::string_view folder = std::string_view(pickle->key).substr(0, pickle->key.size() - kPickle.size() + 1);
    for (const StoredBytes& record : records) {
      const bool inside = record.key.starts_with(folder) && format::valid_utf8_bytes(record.key) == record.key.size();
      if (!inside)
        tell_record(record, CheckpointProblem::Severity::warning,
                    "is not in the folder of the others, or its name is not UTF-8: torch.load refuses the file");
      if (!record.readable)
        tell_record(record, inside ? CheckpointProblem::Severity::error : CheckpointProblem::Severity::warning,
                    "is compressed or encrypted, as torch.save never does, and was not checked");
    }
  }

  void tell_record(const StoredBytes& record, CheckpointProblem::Severity severity, std::string_view what) {
    result_.problems.push_back({.severity = severity,
                                .file = file_.path(),
                                .tensor = {},
                                .offset_bytes = record.offset_bytes,
                                .text = fmt::format("record {} {}", format::quote_name(record.key), what)});
  }

  void list_tensors() {
    const size_t first = result_.stats.size();
    for (const StoredTensor& tensor : file_.tensors())
      result_.stats.push_back({.name = tensor.name, .dtype = tensor.dtype});
    feeds_.resize(file_.storages().size());
    // A tensor under many names is counted once.
    std::map<std::tuple<uint32_t, uint64_t, DType, std::vector<uint64_t>, std::vector<int64_t>, bool, bool>, size_t>
        known;
    for (size_t i = 0; i < file_.tensors().size(); ++i) {
      const StoredTensor& one = file_.tensors()[i];
      const auto [at, added] = known.try_emplace(
          {one.storage, one.storage_offset_bytes, one.dtype, one.shape, one.strides, one.conjugate, one.negative},
          first + i);
      if (added)
        feeds_[one.storage].emplace_back(one, result_.stats[first + i]);
      else
        counted_as_.emplace_back(first + i, at->second);
    }
  }

  // False when it is to stop.
  [[nodiscard]] bool take(const RangePiece& piece, VerifiedFile& facts) {
    const Part& part = parts_[piece.item];
    const bool last = piece.offset_bytes + piece.bytes.size() == part.bytes;
    if (part.lead) {
      if (piece.offset_bytes == 0) lead_.clear();
      lead_.insert(lead_.end(), piece.bytes.begin(), piece.bytes.end());
      if (!last) return true;
      if (Status checked = file_.check_lead(*part.storage, lead_); !checked) tell(checked.error());
      return true;
    }
    if (part.crc32) {
      if (piece.offset_bytes == 0) sum_ = 0;
      sum_ = base::crc32(piece.bytes, sum_);
      if (last && sum_ != *part.crc32) tell_sum(part, sum_);
      facts.summed_bytes += piece.bytes.size();
    } else {
      facts.read_bytes += piece.bytes.size();
    }
    if (!part.storage || feeds_.empty()) return true;
    for (StatsFeed& feed : feeds_[*part.storage]) {
      feed.add(piece.offset_bytes, piece.bytes);
      if (options_.progress.interrupted && options_.progress.interrupted()) return false;
    }
    return true;
  }

  void tell_sum(const Part& part, uint32_t sum) {
    std::string what = fmt::format("record {}", format::quote_name(part.record));
    std::string tensor;
    if (part.storage) {
      what = fmt::format("storage {}", format::quote_name(file_.storages()[*part.storage].key));
      tensor = tensor_in(*part.storage);
    }
    result_.problems.push_back({.file = file_.path(),
                                .tensor = std::move(tensor),
                                .offset_bytes = part.offset_bytes,
                                .text = convert::sum_mismatch(what, part.offset_bytes, part.bytes, sum, *part.crc32)});
  }

  // A tensor of a storage; there may be many bad ones.
  std::string tensor_in(uint32_t storage) {
    if (tensor_in_.empty()) {
      tensor_in_.resize(file_.storages().size());
      for (const StoredTensor& tensor : file_.tensors())
        if (const StoredTensor*& first = tensor_in_[tensor.storage]; first == nullptr) first = &tensor;
    }
    return tensor_in_[storage] == nullptr ? std::string() : tensor_in_[storage]->name;
  }

  void tell(const Error& error) {
    result_.problems.push_back(
        {.file = file_.path(), .tensor = {}, .offset_bytes = error.offset_bytes, .text = error.detail});
  }

  Status tell_or_fail(const Error& error) {
    if (error.code != ErrorCode::corrupt) return with_path(error);
    tell(error);
    return {};
  }

  Status with_path(Error error) const {
    error.path = file_.path();
    return std::unexpected(std::move(error));
  }

  Handle& handle_;
  const CheckpointFile& file_;
  const VerifyOptions& options_;
  Verification& result_;
  std::vector<Part> parts_;
  std::vector<std::vector<StatsFeed>> feeds_;          // by storage
  std::vector<std::pair<size_t, size_t>> counted_as_;  // of the stats, those that are the same as others
  std::vector<const StoredTensor*> tensor_in_;         // by storage; empty until it is asked for
  std::vector<std::byte> lead_;
  uint32_t sum_ = 0;
};

}  // namespace

bool Verification::good() const noexcept {
  return std::ranges::none_of(
      problems, [](const CheckpointProblem& p) { return p.severity == CheckpointProblem::Severity::error; });
}

Result<Verification> verify_checkpoint(Handle& handle, const std::string& path, const VerifyOptions& options) {
  if (convert::is_dcp(path)) return convert::verify_dcp(handle, path, options);
  Verification result;
  result.path = path;
  const auto tell = [&](const Error& error) {
    result.problems.push_back(
        {.file = error.path, .tensor = {}, .offset_bytes = error.offset_bytes, .text = error.detail});
  };
  Result<CheckpointFiles> found = find_checkpoint_files(path);
  if (!found) {
    if (found.error().code != ErrorCode::corrupt) return std::unexpected(found.error());
    tell(found.error());
    return result;
  }
  const LoadOptions load = {.interrupted = options.progress.interrupted, .protocols = PickleProtocols::later};
  std::vector<CheckpointFile> files;
  uint64_t total_bytes = 0;
  for (const std::string& one : found->paths) {
    Result<CheckpointFile> file = CheckpointFile::open(handle, one, load);
    if (!file && file.error().code != ErrorCode::corrupt) return std::unexpected(std::move(file).error());
    if (!file) {
      tell(file.error());
      continue;
    }
    total_bytes += file->file_bytes();
    files.push_back(*std::move(file));
  }
  ProgressMeter meter(options.progress, total_bytes);
  for (const CheckpointFile& file : files)
    if (Status checked = FileCheck(handle, file, options, result).run(meter); !checked)
      return std::unexpected(std::move(checked).error());
  if (files.size() == found->paths.size())
    std::ranges::move(CheckpointSet::of(std::move(files), std::move(found->index), std::move(found->beside)).problems(),
                      std::back_inserter(result.problems));
  return result;
}

}  // namespace headrace
