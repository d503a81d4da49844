// SPDX-License-Identifier: Apache-2.0
// Two checkpoints side by side: two streams of the tensors that both hold, in the order of the first.
// One thread beside the handle's.
// Owns what it finds until it is returned.
#include <algorithm>
#include <cstring>
#include <map>
#include <ranges>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <headrace/verify.h>

#include "base/progress_meter.h"
#include "convert/tensor_stream.h"
#include "format/format_error.h"

namespace headrace {
namespace {

using convert::TensorOrder;
using convert::TensorPiece;
using convert::TensorStream;
using Kind = TensorDifference::Kind;

// The unread rest of a stream's piece.
class Cursor {
 public:
  explicit Cursor(TensorStream stream) : stream_(std::move(stream)) {}

  // False at the end.
  Result<bool> need() {
    if (!rest_.empty()) return true;
    const Result<std::optional<TensorPiece>> piece = stream_.next();
    if (!piece) return std::unexpected(piece.error());
    if (!*piece) return false;
    tensor_ = (*piece)->item;
    offset_bytes_ = (*piece)->offset_bytes;
    rest_ = (*piece)->bytes;
    return true;
  }
  std::span<const std::byte> take(size_t bytes) {
    const std::span<const std::byte> taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    offset_bytes_ += bytes;
    return taken;
  }
  [[nodiscard]] size_t size() const { return rest_.size(); }
  [[nodiscard]] size_t tensor() const { return tensor_; }
  [[nodiscard]] uint64_t offset_bytes() const { return offset_bytes_; }

 private:
  TensorStream stream_;
  size_t tensor_ = 0;
  uint64_t offset_bytes_ = 0;
  std::span<const std::byte> rest_;
};

std::optional<uint64_t> file_offset(const CheckpointSet& set, CheckpointSet::Tensor tensor, uint64_t offset_bytes) {
  const StoredTensor& stored = set.stored(tensor);
  if (!stored.contiguous) return std::nullopt;
  return set.files()[tensor.file].storages()[stored.storage].offset_bytes + stored.storage_offset_bytes + offset_bytes;
}

// float4_e2m1fn_x2 is counted in bytes by torch and in halves by safetensors: here in halves.
std::vector<uint64_t> comparable_shape(const CheckpointSet& set, CheckpointSet::Tensor tensor) {
  std::vector<uint64_t> shape = set.stored(tensor).shape;
  const bool bytes = set.files()[tensor.file].format() != CheckpointFormat::safetensors;
  if (set.stored(tensor).dtype == DType::float4_e2m1fn_x2 && bytes && !shape.empty()) shape.back() *= 2;
  return shape;
}

Status check_names(const CheckpointSet& set) {
  std::unordered_set<std::string_view> names;
  for (const CheckpointSet::Tensor& tensor : set.tensors())
    if (const std::string& name = set.stored(tensor).name; !names.insert(name).second)
      return std::unexpected(
          Error{.code = ErrorCode::unavailable,
                .operation = "compare",
                .path = set.files()[tensor.file].path(),
                .detail = fmt::format("two of its tensors are told by the name {}, so they cannot be compared by it",
                                      format::quote_name(name))});
  return {};
}

// That two have no difference says nothing of what was not looked at.
Status check_all_listed(const CheckpointSet& set) {
  for (const CheckpointFile& file : set.files())
    if (const uint64_t bytes = convert::unlisted_bytes(file); bytes != 0)
      return std::unexpected(
          Error{.code = ErrorCode::unavailable,
                .operation = "compare",
                .path = file.path(),
                .detail = fmt::format("what could be compared is equal, but {} bytes of it belong to no tensor that is "
                                      "told by name (they lie in an object, such as a module that was saved whole, or "
                                      "are of an unknown type); compare state dicts instead",
                                      bytes)});
  return {};
}

// Which bytes, read in which way: of a file, a storage, from an offset.
using View = std::tuple<uint32_t, uint32_t, uint64_t, DType, std::vector<uint64_t>, std::vector<int64_t>>;
using ByView = std::map<View, std::vector<CheckpointSet::Tensor>>;

View view_of(const CheckpointSet& set, CheckpointSet::Tensor tensor) {
  const StoredTensor& stored = set.stored(tensor);
  return {tensor.file, stored.storage, stored.storage_offset_bytes, stored.dtype, stored.shape, stored.strides};
}

ByView by_view(const CheckpointSet& set) {
  ByView tensors;
  for (const CheckpointSet::Tensor& tensor : set.tensors())
    tensors[view_of(set, tensor)].push_back(tensor);
  return tensors;
}

class Comparer {
 public:
  Comparer(const CheckpointSet& here, const CheckpointSet& there, Comparison& result)
      : here_(here), there_(there), result_(result) {}

  void match() {
    const ByView here_by_view = by_view(here_), there_by_view = by_view(there_);
    for (const CheckpointSet::Tensor& tensor : here_.tensors()) {
      const StoredTensor& stored = here_.stored(tensor);
      const std::optional<CheckpointSet::Tensor> other = there_.find(stored.name);
      if (!other) {
        add({.kind = Kind::only_here,
             .tensor = stored.name,
             .text = missing(here_, tensor, here_by_view, there_, result_.other)});
        continue;
      }
      const StoredTensor& facts = there_.stored(*other);
      const std::vector<uint64_t> shape = comparable_shape(here_, tensor),
                                  other_shape = comparable_shape(there_, *other);
      if (stored.dtype != facts.dtype) {
        add({.kind = Kind::dtype,
             .tensor = stored.name,
             .text = fmt::format("{} here, {} there", dtype_facts(stored.dtype).name, dtype_facts(facts.dtype).name)});
      } else if (shape != other_shape || stored.bytes != facts.bytes) {
        add({.kind = Kind::shape,
             .tensor = stored.name,
             .text = fmt::format("[{}] here, [{}] there", fmt::join(shape, ", "), fmt::join(other_shape, ", "))});
      } else {
        pairs_.push_back({tensor, *other});
        total_bytes_ += stored.bytes;
      }
    }
    for (const CheckpointSet::Tensor& tensor : there_.tensors())
      if (const std::string& name = there_.stored(tensor).name; !here_.find(name))
        add({.kind = Kind::only_there,
             .tensor = name,
             .text = missing(there_, tensor, there_by_view, here_, result_.path)});
    result_.compared_tensors = pairs_.size();
  }

  Status compare(Handle& handle, const Progress& progress) {
    std::vector<TensorOrder> orders, other_orders;
    for (const Pair& pair : pairs_) {
      orders.push_back({.tensor = pair.here, .as = std::nullopt});
      other_orders.push_back({.tensor = pair.there, .as = std::nullopt});
    }
    Result<TensorStream> stream = TensorStream::create(handle, here_, orders, progress.interrupted);
    if (!stream) return std::unexpected(std::move(stream).error());
    Result<TensorStream> other = TensorStream::create(handle, there_, other_orders, progress.interrupted);
    if (!other) return std::unexpected(std::move(other).error());
    Cursor a(*std::move(stream)), b(*std::move(other));
    base::ProgressMeter meter(progress, total_bytes_);
    while (true) {
      const Result<bool> more = a.need();
      if (!more) return std::unexpected(more.error());
      if (!*more) break;
      if (const Result<bool> other_more = b.need(); !other_more) return std::unexpected(other_more.error());
      const size_t tensor = a.tensor();
      const uint64_t offset = a.offset_bytes();
      const size_t bytes = std::min(a.size(), b.size());
      compare_bytes(tensor, offset, a.take(bytes), b.take(bytes));
      result_.compared_bytes += bytes;
      meter.add("comparing", bytes);
    }
    return {};
  }

 private:
  struct Pair {
    CheckpointSet::Tensor here, there;
  };

  // A tied tensor is often left out of one of the files.
  static std::string missing(const CheckpointSet& set, CheckpointSet::Tensor tensor, const ByView& by_view,
                             const CheckpointSet& other, const std::string& other_path) {
    constexpr size_t kLookedAt = 16;  // a model ties a few; a file can hold a million names of one tensor
    for (const CheckpointSet::Tensor& tied : by_view.at(view_of(set, tensor)) | std::views::take(kLookedAt)) {
      const std::string& name = set.stored(tied).name;
      if (other.find(name))
        return fmt::format("{} does not have it; its bytes are those of {}, which both have", other_path, name);
    }
    return fmt::format("{} does not have it", other_path);
  }

  void add(TensorDifference difference) { result_.differences.push_back(std::move(difference)); }

  void compare_bytes(size_t tensor, uint64_t offset, std::span<const std::byte> a, std::span<const std::byte> b) {
    if (std::memcmp(a.data(), b.data(), a.size()) == 0) return;
    uint64_t differing = 0;
    for (size_t i = 0; i < a.size(); ++i)
      differing += a[i] != b[i] ? 1U : 0U;
    const std::string& name = here_.stored(pairs_[tensor].here).name;
    if (differing_ != tensor) {
      differing_ = tensor;
      const uint64_t first = offset + static_cast<uint64_t>(std::ranges::mismatch(a, b).in1 - a.begin());
      add({.kind = Kind::bytes,
           .tensor = name,
           .text = {},
           .first_bytes = first,
           .file_offset_bytes = file_offset(here_, pairs_[tensor].here, first),
           .other_file_offset_bytes = file_offset(there_, pairs_[tensor].there, first)});
    }
    TensorDifference& difference = result_.differences.back();
    difference.differing_bytes += differing;
    const uint64_t element_bytes = std::max<uint32_t>(dtype_facts(here_.stored(pairs_[tensor].here).dtype).bits / 8, 1);
    difference.text = fmt::format("{} bytes differ, the first at byte {} (element {})", difference.differing_bytes,
                                  difference.first_bytes, difference.first_bytes / element_bytes);
  }

  const CheckpointSet& here_;
  const CheckpointSet& there_;
  Comparison& result_;
  std::vector<Pair> pairs_;
  uint64_t total_bytes_ = 0;
  size_t differing_ = SIZE_MAX;  // the pair that the last difference is of
};

}  // namespace

std::string_view difference_name(Kind kind) noexcept {
  switch (kind) {
    case Kind::only_here: return "only-here";
    case Kind::only_there: return "only-there";
    case Kind::dtype: return "dtype";
    case Kind::shape: return "shape";
    case Kind::bytes: break;
  }
  return "bytes";
}

Result<Comparison> compare_checkpoints(Handle& handle, const std::string& path, const std::string& other,
                                       const Progress& progress) {
  const LoadOptions load = {.interrupted = progress.interrupted, .protocols = PickleProtocols::later};
  const Result<CheckpointSet> here = CheckpointSet::open(handle, path, load);
  if (!here) return std::unexpected(here.error());
  const Result<CheckpointSet> there = CheckpointSet::open(handle, other, load);
  if (!there) return std::unexpected(there.error());
  for (const CheckpointSet* set : {&*here, &*there}) {
    const std::vector<CheckpointProblem> problems = set->problems();
    const auto wrong = std::ranges::find(problems, CheckpointProblem::Severity::error, &CheckpointProblem::severity);
    if (wrong != problems.end())
      return std::unexpected(
          Error{.code = ErrorCode::corrupt,
                .operation = "compare",
                .path = wrong->file,
                .detail = fmt::format("tensor {}: {}; see headrace verify", wrong->tensor, wrong->text)});
  }
  for (const CheckpointSet* set : {&*here, &*there})
    if (Status names = check_names(*set); !names) return std::unexpected(std::move(names).error());
  Comparison result;
  result.path = path;
  result.other = other;
  Comparer comparer(*here, *there, result);
  comparer.match();
  if (Status compared = comparer.compare(handle, progress); !compared)
    return std::unexpected(std::move(compared).error());
  for (const CheckpointSet* set : {&*here, &*there})
    if (Status listed = check_all_listed(*set); result.differences.empty() && !listed)
      return std::unexpected(std::move(listed).error());
  return result;
}

}  // namespace headrace
