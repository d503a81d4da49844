// SPDX-License-Identifier: Apache-2.0
// The formats without sums: everything is known before a byte moves, so a file is one gathered write.
// One thread beside the handle's.
// Owns the bytes between the tensors until they are written.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <headrace/pickle_writer.h>

#include "checkpoint/atomic_write.h"
#include "format/row_major.h"
#include "format/safetensors.h"
#include "format/torch_legacy.h"

namespace headrace {
namespace {

using checkpoint::AtomicWrite;
using checkpoint::Stretch;

ConstRegion region_of(std::string_view text) { return {std::as_bytes(std::span(text)).data(), text.size(), {}}; }

Result<uint64_t> save_gathered(Handle& handle, const std::string& path, std::vector<ConstRegion> sources,
                               uint64_t file_bytes, const SaveOptions& options) {
  Result<AtomicWrite> file = AtomicWrite::create(handle, path, file_bytes, options);
  if (!file) return std::unexpected(std::move(file).error());
  const std::array<Stretch, 1> all = {Stretch{.offset_bytes = 0, .sources = std::move(sources)}};
  if (Status started = file->start(all); !started) return std::unexpected(std::move(started).error());
  if (Result<std::vector<uint32_t>> written = file->finish(); !written)
    return std::unexpected(std::move(written).error());
  if (Status committed = file->commit(); !committed) return std::unexpected(std::move(committed).error());
  return file_bytes;
}

std::unexpected<Error> with_path(Error error, const std::string& path) {
  error.path = path;
  return std::unexpected(std::move(error));
}

}  // namespace

Result<uint64_t> save_safetensors(Handle& handle, const std::string& path, std::span<const NamedTensor> tensors,
                                  const std::optional<Metadata>& metadata, const SaveOptions& options) {
  std::vector<format::SafetensorsEntry> entries;
  entries.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors)
    entries.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .bytes = tensor.data.bytes});
  Result<format::SafetensorsPlan> plan = format::plan_safetensors(entries, metadata);
  if (!plan) return with_path(std::move(plan).error(), path);
  std::vector<ConstRegion> sources = {region_of(plan->head)};
  sources.reserve(tensors.size() + 2);
  for (const uint32_t i : plan->order)
    sources.push_back(tensors[i].data);
  return save_gathered(handle, path, std::move(sources), plan->file_bytes, options);
}

Result<uint64_t> save_torch_legacy(Handle& handle, const std::string& path, std::string_view pickle,
                                   std::span<const TorchLegacyStorage> storages, const SaveOptions& options) {
  std::vector<format::LegacyEntry> entries;
  entries.reserve(storages.size());
  for (const TorchLegacyStorage& storage : storages)
    entries.push_back({.key = storage.key, .element_count = storage.element_count, .bytes = storage.data.bytes});
  Result<format::LegacyPlan> plan = format::plan_torch_legacy(pickle.size(), entries);
  if (!plan) return with_path(std::move(plan).error(), path);
  std::vector<ConstRegion> sources = {region_of(plan->lead), region_of(pickle), region_of(plan->keys)};
  sources.reserve(2 * storages.size() + 4);
  for (const uint32_t i : plan->order) {
    const std::array<std::byte, format::kLegacyCountBytes>& count = plan->places[i].count;
    sources.push_back({count.data(), count.size(), {}});
    sources.push_back(storages[i].data);
  }
  return save_gathered(handle, path, std::move(sources), plan->file_bytes, options);
}

Result<uint64_t> save_torch(Handle& handle, const std::string& path, std::span<const NamedTensor> tensors,
                            const SaveOptions& options) {
  PickleWriter writer;
  writer.empty_dict();
  (void)writer.memoize();
  if (!tensors.empty()) writer.mark();
  std::vector<ConstRegion> storages;
  storages.reserve(tensors.size());
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  for (const NamedTensor& tensor : tensors) {
    const DTypeFacts& facts = dtype_facts(tensor.dtype);
    sizes.assign(tensor.shape.begin(), tensor.shape.end());
    const std::optional<uint64_t> bytes = format::row_major(tensor.shape, facts.torch_bytes, strides);
    if (facts.torch_bytes == 0 || bytes != tensor.data.bytes) {
      return std::unexpected(
          Error{.code = ErrorCode::invalid_argument,
                .operation = "save",
                .path = path,
                .detail = facts.torch_bytes == 0
                              ? fmt::format("tensor '{}': torch has no element type {}", tensor.name, facts.name)
                              : fmt::format("tensor '{}' has {} bytes, and its shape and type want other than that",
                                            tensor.name, tensor.data.bytes)});
    }
    const std::string key = fmt::format("{}", storages.size());
    writer.text(tensor.name);
    writer.tensor({.dtype = tensor.dtype,
                   .storage_key = key,
                   .storage_bytes = tensor.data.bytes,
                   .sizes = sizes,
                   .strides = strides});
    storages.push_back(tensor.data);
  }
  if (!tensors.empty()) writer.setitems();
  const Result<std::string> pickle = writer.finish();
  if (!pickle) return with_path(pickle.error(), path);
  return save_torch_zip(handle, path, {.pickle = *pickle, .storages = storages}, options);
}

}  // namespace headrace
