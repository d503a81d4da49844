// SPDX-License-Identifier: Apache-2.0
// Several checkpoint files as one, and where they contradict each other.
// Const once open; any thread.
// Owns the open files and the order of their tensors by name.
#include <headrace/checkpoint_set.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "format/format_error.h"

namespace headrace {

std::string_view severity_name(CheckpointProblem::Severity severity) noexcept {
  switch (severity) {
    case CheckpointProblem::Severity::note: return "note";
    case CheckpointProblem::Severity::warning: return "warning";
    case CheckpointProblem::Severity::error: break;
  }
  return "error";
}

class CheckpointSet::Impl {
 public:
  std::vector<CheckpointFile> files;
  std::optional<ShardIndex> index;
  std::vector<std::string> beside;
  std::vector<Tensor> tensors;
  std::vector<uint32_t> by_name;  // indices into `tensors`; equal names in their order

  [[nodiscard]] const StoredTensor& stored(Tensor tensor) const { return files[tensor.file].tensors()[tensor.tensor]; }
  [[nodiscard]] const std::string& name(uint32_t i) const { return stored(tensors[i]).name; }

  void order_by_name() {
    for (uint32_t file = 0; file < files.size(); ++file)
      for (uint32_t tensor = 0; tensor < files[file].tensors().size(); ++tensor)
        tensors.push_back({.file = file, .tensor = tensor});
    by_name.resize(tensors.size());
    std::iota(by_name.begin(), by_name.end(), uint32_t{0});
    std::ranges::sort(by_name, [this](uint32_t a, uint32_t b) {
      return std::pair(std::string_view(name(a)), a) < std::pair(std::string_view(name(b)), b);
    });
  }

  // All tensors of this name, as indices into by_name.
  [[nodiscard]] std::span<const uint32_t> of_name(std::string_view wanted) const {
    const auto found =
        std::ranges::equal_range(by_name, wanted, {}, [this](uint32_t i) { return std::string_view(name(i)); });
    return {found.begin(), found.end()};
  }

  void check_index(std::vector<CheckpointProblem>& problems) const;
  void check_names(std::vector<CheckpointProblem>& problems) const;
};

void CheckpointSet::Impl::check_index(std::vector<CheckpointProblem>& problems) const {
  const auto tell = [&](uint32_t file, std::string tensor, std::string text) {
    problems.push_back({.file = files[file].path(), .tensor = std::move(tensor), .text = std::move(text)});
  };
  std::vector<bool> indexed(tensors.size());
  for (const ShardIndex::Entry& entry : index->entries) {
    const std::span<const uint32_t> found = of_name(entry.tensor);
    const auto there = std::ranges::find_if(found, [&](uint32_t i) { return tensors[i].file == entry.file; });
    if (there != found.end()) {
      indexed[*there] = true;
    } else if (found.empty()) {
      tell(entry.file, entry.tensor, "the index says that this file holds the tensor; no file does");
    } else {
      tell(entry.file, entry.tensor,
           fmt::format("the index says that this file holds the tensor; it is in {}",
                       files[tensors[found.front()].file].path()));
    }
  }
  for (uint32_t i = 0; i < tensors.size(); ++i)
    if (!indexed[i]) tell(tensors[i].file, name(i), "the index does not name this tensor for this file");
  if (!index->total_bytes) return;
  // Some writers count what is stored, some what the tensors hold: bytes that several share are counted once or every time.
  uint64_t stored_bytes = 0, tensor_bytes = 0;
  for (const CheckpointFile& file : files)
    for (const StoredBytes& one : file.storages())
      stored_bytes += one.bytes;
  for (const Tensor& tensor : tensors)
    tensor_bytes += stored(tensor).bytes;
  if (*index->total_bytes != stored_bytes && *index->total_bytes != tensor_bytes)
    problems.push_back(
        {.severity = CheckpointProblem::Severity::warning,
         .file = index->path,
         .tensor = {},
         .text = fmt::format("its total_size says {} bytes; the files hold {}", *index->total_bytes, tensor_bytes)});
}

void CheckpointSet::Impl::check_names(std::vector<CheckpointProblem>& problems) const {
  for (size_t i = 1; i < by_name.size(); ++i) {
    if (name(by_name[i]) != name(by_name[i - 1])) continue;
    const Tensor& here = tensors[by_name[i]];
    const Tensor& before = tensors[by_name[i - 1]];
    // {"a": {"b": x}, "a.b": y} is a sound object; only by name the two cannot be told apart.
    const bool one_file = here.file == before.file;
    problems.push_back(
        {.severity = one_file ? CheckpointProblem::Severity::warning : CheckpointProblem::Severity::error,
         .file = files[here.file].path(),
         .tensor = name(by_name[i]),
         .text = one_file ? std::string("two tensors of this file are told by this name")
                          : fmt::format("{} holds a tensor of this name too", files[before.file].path())});
  }
}

Result<CheckpointSet> CheckpointSet::open(Handle& handle, const std::string& path, const LoadOptions& options) {
  Result<CheckpointFiles> found = find_checkpoint_files(path);
  if (!found) return std::unexpected(std::move(found).error());
  std::vector<CheckpointFile> files;
  for (const std::string& file : found->paths) {
    Result<CheckpointFile> opened = CheckpointFile::open(handle, file, options);
    if (!opened) return std::unexpected(std::move(opened).error());
    files.push_back(*std::move(opened));
  }
  return of(std::move(files), std::move(found->index), std::move(found->beside));
}

CheckpointSet CheckpointSet::of(std::vector<CheckpointFile> files, std::optional<ShardIndex> index,
                                std::vector<std::string> beside) {
  auto impl = std::make_unique<Impl>();
  impl->files = std::move(files);
  impl->index = std::move(index);
  impl->beside = std::move(beside);
  impl->order_by_name();
  return CheckpointSet(std::move(impl));
}

CheckpointSet::CheckpointSet(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
CheckpointSet::CheckpointSet(CheckpointSet&&) noexcept = default;
CheckpointSet& CheckpointSet::operator=(CheckpointSet&&) noexcept = default;
CheckpointSet::~CheckpointSet() = default;

std::span<const CheckpointFile> CheckpointSet::files() const noexcept { return impl_->files; }
const std::optional<ShardIndex>& CheckpointSet::index() const noexcept { return impl_->index; }
std::span<const CheckpointSet::Tensor> CheckpointSet::tensors() const noexcept { return impl_->tensors; }
const StoredTensor& CheckpointSet::stored(Tensor tensor) const noexcept { return impl_->stored(tensor); }

std::optional<CheckpointSet::Tensor> CheckpointSet::find(std::string_view name) const {
  const std::span<const uint32_t> found = impl_->of_name(name);
  if (found.empty()) return std::nullopt;
  return impl_->tensors[found.front()];
}

std::vector<CheckpointProblem> CheckpointSet::problems() const {
  std::vector<CheckpointProblem> problems;
  if (impl_->index) impl_->check_index(problems);
  for (const std::string& path : impl_->beside)
    problems.push_back({.severity = CheckpointProblem::Severity::note,
                        .file = path,
                        .tensor = {},
                        .text = "in the same folder, and no part of this checkpoint: not looked at"});
  impl_->check_names(problems);
  return problems;
}

}  // namespace headrace
