// SPDX-License-Identifier: Apache-2.0
// Which files make up a checkpoint that is named by a folder, an index or the common start of their names.
// Any thread.
// Owns nothing beyond a call.
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <headrace/checkpoint_set.h>

#include "format/format_error.h"
#include "format/shard_index.h"
#include "os/error.h"
#include "os/file_system.h"
#include "os/small_file.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFinding = "find checkpoint";
constexpr std::string_view kIndexSuffix = ".index.json";
constexpr std::array<std::string_view, 5> kSuffixes = {".safetensors", ".bin", ".pt", ".pth", ".ckpt"};
// As many as the folder of a training run may hold, and a bound for one that is none.
constexpr size_t kFolderEntriesMax = 1'000'000;

std::string_view suffix_of(std::string_view name) {
  for (const std::string_view suffix : kSuffixes)
    if (name.ends_with(suffix)) return suffix;
  return {};
}

// Whole, however long: it is to be copied.
std::string for_shell(std::string_view word) {
  std::string text = "'";
  for (const char c : word)
    c == '\'' ? text += R"('\'')" : text += c;
  return text + "'";
}

std::unexpected<Error> unclear(const std::string& path, std::string detail) {
  return std::unexpected(
      Error{.code = ErrorCode::invalid_argument, .operation = kFinding, .path = path, .detail = std::move(detail)});
}

std::unexpected<Error> failed(const std::string& path, const std::error_code& error) {
  return std::unexpected(os::system_error(kFinding, path, error.value()));
}

std::string join(std::string_view folder, std::string_view name) {
  if (folder.empty()) return std::string(name);
  return folder.ends_with('/') ? fmt::format("{}{}", folder, name) : fmt::format("{}/{}", folder, name);
}

// Folder and name of a path; the folder with its last slash, so that both together are the path.
std::pair<std::string, std::string> split(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {"", path};
  return {path.substr(0, slash + 1), path.substr(slash + 1)};
}

std::string list_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", names[i]);
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

Result<std::vector<std::string>> names_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator at(folder.empty() ? "." : folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    if (names.size() == kFolderEntriesMax)
      return unclear(folder, fmt::format("this folder has more than {} entries; name the files", kFolderEntriesMax));
    names.push_back(at->path().filename().string());
  }
  if (error) return failed(folder, error);
  std::ranges::sort(names);
  return names;
}

// "-00002-of-00005" before the suffix.
struct Part {
  std::string_view start, number, total, suffix;
};

std::optional<Part> part_of(std::string_view name) {
  Part part;
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  part.suffix = name.substr(dot);
  std::string_view rest = name.substr(0, dot);
  const auto digits = [&]() -> std::string_view {
    const size_t last = rest.find_last_not_of("0123456789");
    const std::string_view found = rest.substr(last == std::string_view::npos ? 0 : last + 1);
    rest.remove_suffix(found.size());
    return found;
  };
  part.total = digits();
  if (part.total.empty() || !rest.ends_with("-of-")) return std::nullopt;
  rest.remove_suffix(4);
  part.number = digits();
  if (part.number.empty() || !rest.ends_with('-')) return std::nullopt;
  part.start = rest.substr(0, rest.size() - 1);
  return part;
}

uint64_t number_of(std::string_view digits) {
  uint64_t number = UINT64_MAX;  // what does not fit is no number of a part
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

// One file, or the parts if all of one set are there and nothing else is.
Result<CheckpointFiles> complete(const std::string& path, const std::string& folder,
                                 const std::vector<std::string>& names) {
  CheckpointFiles files;
  for (const std::string& name : names)
    files.paths.push_back(join(folder, name));
  if (names.size() == 1 && !part_of(names.front())) return files;
  std::set<std::string> sets;
  std::set<uint64_t> numbers;
  for (const std::string& name : names) {
    const std::optional<Part> part = part_of(name);
    sets.insert(part ? fmt::format("{}/{}/{}", part->start, part->total, part->suffix) : std::string());
    if (part) numbers.insert(number_of(part->number));
  }
  if (sets.size() != 1 || sets.contains(""))
    return unclear(path,
                   fmt::format("these are files of several checkpoints: {}; name one of them", list_names(names)));
  const uint64_t total = number_of(part_of(names.front())->total);
  uint64_t next = numbers.contains(0) ? 0 : 1;
  const uint64_t first = next;
  while (numbers.contains(next))
    ++next;
  if (next - first < total)
    return unclear(path, fmt::format("{} of {} parts are there ({}); number {} is missing", numbers.size(), total,
                                     list_names(names), next));
  if (names.size() != total)
    return unclear(path, fmt::format("these are parts of several checkpoints: {}", list_names(names)));
  return files;
}

std::unexpected<Error> broken_index(const std::string& path, std::string detail) {
  return std::unexpected(
      Error{.code = ErrorCode::corrupt, .operation = "read index", .path = path, .detail = std::move(detail)});
}

// `beside` are the checkpoint files of its folder, as far as the path names them.
Result<CheckpointFiles> of_index(const std::string& path, const std::vector<std::string>& beside) {
  Result<std::vector<std::byte>> json = os::read_small_file(path, format::kShardIndexBytesMax);
  if (!json) return std::unexpected(std::move(json).error());
  Result<format::ShardIndexText> text = format::parse_shard_index(*json);
  if (!text) return broken_index(path, text.error().detail);
  CheckpointFiles files;
  const std::string folder = split(path).first;
  std::set<std::string> names;
  for (const auto& [tensor, file] : text->files_by_tensor)
    names.insert(file);
  for (const std::string& name : names) {
    const std::string file = join(folder, name);
    std::error_code error;
    if (!fs::is_regular_file(file, error))
      return broken_index(path, fmt::format("it names {}, which is not there", format::quote_name(name)));
    files.paths.push_back(file);
  }
  std::set<std::string_view> suffixes;
  for (const std::string& name : names)
    suffixes.insert(suffix_of(name));
  for (const std::string& name : beside) {
    if (!names.contains(name) && suffixes.contains(suffix_of(name)))
      return unclear(path,
                     fmt::format("beside the files of this index there is {}, which it does not name: one of them is "
                                 "left over from another checkpoint. Name the index itself, or the file",
                                 format::quote_name(name)));
  }
  ShardIndex index = {.path = path, .entries = {}, .total_bytes = text->total_bytes};
  const std::vector<std::string> sorted(names.begin(), names.end());
  for (auto& [tensor, file] : text->files_by_tensor)
    index.entries.push_back({.tensor = std::move(tensor),
                             .file = static_cast<uint32_t>(std::ranges::lower_bound(sorted, file) - sorted.begin())});
  files.index = std::move(index);
  return files;
}

Result<CheckpointFiles> of_folder(const std::string& path) {
  Result<std::vector<std::string>> names = names_in(path);
  if (!names) return std::unexpected(std::move(names).error());
  std::vector<std::string> indices, safe, all;
  for (const std::string& name : *names) {
    if (name.ends_with(kIndexSuffix)) indices.push_back(name);
    if (suffix_of(name).empty()) continue;
    all.push_back(name);
    if (name.ends_with(".safetensors")) safe.push_back(name);
  }
  const auto with_beside = [&](Result<CheckpointFiles> files) {
    if (!files) return files;
    for (const std::string& name : all)
      if (std::ranges::find(files->paths, join(path, name)) == files->paths.end())
        files->beside.push_back(join(path, name));
    return files;
  };
  if (indices.size() == 1) return with_beside(of_index(join(path, indices.front()), all));
  if (!indices.empty())
    return unclear(path, fmt::format("this folder has several indices: {}; name one of them", list_names(indices)));
  // Weights in both forms are often shipped side by side.
  const std::vector<std::string>& chosen = safe.empty() ? all : safe;
  if (chosen.empty() && std::ranges::binary_search(*names, ".metadata"))
    return std::unexpected(Error{
        .code = ErrorCode::unavailable,
        .operation = kFinding,
        .path = path,
        .detail =
            fmt::format("this is a folder of torch.distributed.checkpoint: it can be inspected and verified, and is "
                        "not converted or compared yet. python -m torch.distributed.checkpoint.format_utils "
                        "dcp_to_torch {} OUT.pt makes a file of it",
                        for_shell(path))});
  if (chosen.empty()) {
    Error error = os::system_error(kFinding, path, ENOENT);
    error.detail = "no file ends in .safetensors, .bin, .pt, .pth or .ckpt in this folder";
    return std::unexpected(std::move(error));
  }
  return with_beside(complete(path, path, chosen));
}

// May `rest` follow the common start of the names of a checkpoint's files?
bool is_rest(std::string_view rest) {
  if (suffix_of(rest).empty()) return false;
  if (const std::optional<Part> part = part_of(rest)) return part->start.empty();
  return rest.starts_with('.') && rest.find('.', 1) == std::string_view::npos;
}

bool is_index_rest(std::string_view rest) {
  if (!rest.ends_with(kIndexSuffix)) return false;
  rest.remove_suffix(kIndexSuffix.size());
  return rest.empty() || (rest.starts_with('.') && rest.find('.', 1) == std::string_view::npos);
}

// The path is no file: the start of the names of several?
Result<CheckpointFiles> of_start(const std::string& path) {
  const auto [folder, start] = split(path);
  const Result<std::vector<std::string>> names = names_in(folder);
  if (!names && names.error().errno_value != ENOENT)
    return std::unexpected(os::system_error(kFinding, path, names.error().errno_value));
  std::vector<std::string> found, indices;
  if (names && !start.empty()) {
    for (const std::string& name : *names) {
      if (!name.starts_with(start)) continue;
      const std::string_view rest = std::string_view(name).substr(start.size());
      if (is_rest(rest)) found.push_back(name);
      if (is_index_rest(rest)) indices.push_back(name);
    }
  }
  if (indices.size() > 1)
    return unclear(
        path, fmt::format("the names of several indices begin like this: {}; name one of them", list_names(indices)));
  if (!indices.empty()) return of_index(join(folder, indices.front()), found);
  if (found.empty()) return std::unexpected(os::system_error(kFinding, path, ENOENT));
  return complete(path, folder, found);
}

}  // namespace

Result<CheckpointFiles> find_checkpoint_files(const std::string& path) {
  if (Status good = os::check_path(kFinding, path); !good) return std::unexpected(std::move(good).error());
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return of_folder(path);
  if (path.ends_with(kIndexSuffix) && fs::is_regular_file(status)) return of_index(path, {});
  if (error.value() == ENOTDIR) return failed(path, error);
  if (status.type() != fs::file_type::not_found) {
    if (error) return failed(path, error);
    return CheckpointFiles{.paths = {path}, .index = std::nullopt};
  }
  return of_start(path);
}

}  // namespace headrace
