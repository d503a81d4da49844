// SPDX-License-Identifier: Apache-2.0
// Opens the formats that have no directory: safetensors by its header, torch's legacy container by its pickles.
// One thread beside the handle's.
// Fills in a CheckpointFile::Impl.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/checkpoint_file.h"
#include "format/format_error.h"
#include "format/safetensors.h"

namespace headrace::checkpoint {
namespace {

constexpr const char* kReading = "read torch file";
constexpr const char* kTwice = "a storage is there twice";
constexpr uint64_t kPicklesBytesMax = uint64_t{4} << 30;

// The keys and persistent ids of a legacy file's object.
Status find_legacy_storages(CheckpointFile::Impl& file, const Pickle& keys, uint64_t begin) {
  const Pickle& pickle = *file.pickle;
  const Result<std::vector<NamedStorage>> named = named_storages(pickle);
  if (!named) return std::unexpected(named.error());
  if (keys.kind(keys.root()) != PickleKind::list)
    return format::corrupt(kReading, keys.offset_bytes(keys.root()), "behind the object there is no list of keys");
  std::vector<format::LegacyStorageId> wanted;
  for (const PickleNode key_node : keys.appended(keys.root())) {
    const std::optional<std::string_view> key = keys.text(key_node);
    const auto id = key ? std::ranges::lower_bound(*named, *key, {}, &NamedStorage::key) : named->end();
    if (id == named->end() || id->key != *key)
      return format::corrupt(kReading, keys.offset_bytes(key_node), "a key names no storage of the pickle");
    if (wanted.size() == named->size()) return format::corrupt(kReading, begin, kTwice);
    const PickleStorage storage = *pickle.storage(id->node);
    if (storage.view && pickle.kind(*storage.view) != PickleKind::none)
      return std::unexpected(Error{.code = ErrorCode::unavailable,
                                   .operation = kReading,
                                   .detail = "the file holds views of storages as torch wrote them before 0.4; load it "
                                             "with torch.load and save it again"});
    const std::optional<uint64_t> bytes = storage_bytes(pickle, storage);
    if (!bytes)
      return format::corrupt(kReading, pickle.offset_bytes(id->node),
                             "a storage is of a type that torch does not have");
    wanted.push_back({.key = storage.key,
                      .element_bytes = storage.numel == 0 ? 1 : *bytes / storage.numel,
                      .element_count = storage.numel});
  }
  Result<format::LegacyStorages> plan = format::plan_legacy_storages(wanted, begin, file.file_bytes);
  if (!plan) return std::unexpected(std::move(plan).error());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const format::LegacyStorage& place = plan->storages[i];
    file.storages.push_back({.key = std::string(wanted[i].key),
                             .offset_bytes = place.data_offset_bytes,
                             .bytes = place.data_bytes,
                             .crc32 = std::nullopt});
    file.lead_begin.push_back(place.count_offset_bytes);
  }
  file.legacy_places = std::move(plan->storages);
  // The order of the file is that of the keys; find_storage() wants them sorted, and torch sorts them.
  if (!std::ranges::is_sorted(file.storages, {}, &StoredBytes::key))
    return format::corrupt(kReading, begin, "the storages are not in the order of their keys");
  if (std::ranges::adjacent_find(file.storages, {}, &StoredBytes::key) != file.storages.end())
    return format::corrupt(kReading, begin, kTwice);
  for (const auto& [key, node] : *named) {
    const bool there = std::ranges::binary_search(file.storages, key, {},
                                                  [](const StoredBytes& one) { return std::string_view(one.key); });
    if (!there)
      return format::corrupt(
          kReading, pickle.offset_bytes(node),
          fmt::format("the pickle names storage {}, and the file does not hold it", format::quote_name(key)));
  }
  return {};
}

}  // namespace

Status open_safetensors(CheckpointFile::Impl& file, Reader& reader, std::span<const std::byte> first) {
  const Result<uint64_t> json_bytes =
      format::safetensors_header_bytes(first.first(std::min<size_t>(first.size(), 8)), file.file_bytes);
  if (!json_bytes) return std::unexpected(json_bytes.error());
  std::vector<std::byte> elsewhere;
  std::span<const std::byte> json;
  if (*json_bytes <= first.size() - format::kSafetensorsLengthBytes) {
    json = first.subspan(format::kSafetensorsLengthBytes, *json_bytes);
  } else {
    Result<std::vector<std::byte>> read = reader.read({format::kSafetensorsLengthBytes, *json_bytes});
    if (!read) return std::unexpected(std::move(read).error());
    elsewhere = *std::move(read);
    json = elsewhere;
  }
  Result<format::SafetensorsHeader> header = format::parse_safetensors(json, file.file_bytes);
  if (!header) return std::unexpected(std::move(header).error());
  file.metadata = std::move(header->metadata);
  file.storages.reserve(header->tensors.size());
  file.tensors.reserve(header->tensors.size());
  std::ranges::sort(header->tensors, {}, &format::SafetensorsTensor::name);
  for (format::SafetensorsTensor& tensor : header->tensors) {
    StoredTensor& one = file.tensors.emplace_back();
    one.dtype = tensor.dtype;
    one.strides.resize(tensor.shape.size());
    int64_t stride = 1;  // cannot overflow for a tensor with elements: its range lies in the file
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      one.strides[i] = stride;
      if (__builtin_mul_overflow(stride, static_cast<int64_t>(std::max<uint64_t>(tensor.shape[i], 1)), &stride))
        stride = INT64_MAX;
    }
    one.storage = static_cast<uint32_t>(file.storages.size());
    one.bytes = tensor.end_bytes - tensor.begin_bytes;
    one.shape = std::move(tensor.shape);
    one.name = tensor.name;
    file.storages.push_back({.key = std::move(tensor.name),
                             .offset_bytes = header->data_begin_bytes + tensor.begin_bytes,
                             .bytes = one.bytes,
                             .crc32 = std::nullopt});
    file.lead_begin.push_back(file.storages.back().offset_bytes);
  }
  return {};
}

Status open_torch_legacy(CheckpointFile::Impl& file, Reader& reader, std::span<const std::byte> first,
                         const LoadOptions& options) {
  const auto parse = [&](std::span<const std::byte> rest, uint64_t begin, UnknownGlobals globals) {
    return parse_pickle(rest, {.base_offset_bytes = begin, .unknown_globals = globals, .protocols = options.protocols});
  };
  const format::PickleLength length = [&](std::span<const std::byte> rest) -> Result<uint64_t> {
    const Result<Pickle> pickle = parse(rest, 0, UnknownGlobals::collect);
    if (!pickle) return std::unexpected(pickle.error());
    return pickle->consumed_bytes();
  };
  file.pickle_bytes.assign(first.begin(), first.end());
  // Where the pickles end is known once they are parsed: more and more is read until they are.
  for (;;) {
    const bool all = file.pickle_bytes.size() == file.file_bytes || file.pickle_bytes.size() >= kPicklesBytesMax;
    const auto more = [&](const Error& error) -> Status {
      if (all) return std::unexpected(error);
      const uint64_t next = std::min({file.file_bytes, uint64_t{file.pickle_bytes.size()} * 4, kPicklesBytesMax});
      Result<std::vector<std::byte>> read = reader.read({0, next});
      if (!read) return std::unexpected(std::move(read).error());
      file.pickle_bytes = *std::move(read);
      return {};
    };
    const std::span<const std::byte> bytes = file.pickle_bytes;
    const Result<uint64_t> lead = format::torch_legacy_lead_bytes(bytes, length);
    Error failure;
    if (lead) {
      Result<Pickle> object = parse(bytes.subspan(*lead), *lead, UnknownGlobals::collect);
      if (object) {
        const uint64_t keys_begin = *lead + object->consumed_bytes();
        const Result<Pickle> keys = parse(bytes.subspan(keys_begin), keys_begin, UnknownGlobals::refuse);
        if (keys) {
          file.pickle = *std::move(object);
          file.pickle_begin = *lead;
          const uint64_t begin = keys_begin + keys->consumed_bytes();
          if (Status found = find_legacy_storages(file, *keys, begin); !found) return found;
          break;
        }
        failure = keys.error();
      } else {
        failure = object.error();
      }
    } else {
      failure = lead.error();
    }
    if (Status grown = more(failure); !grown) return grown;
  }
  Result<PickledThings> things = list_things(file);
  if (!things) return std::unexpected(std::move(things).error());
  file.tensors = std::move(things->tensors);
  file.other_values = std::move(things->others);
  return {};
}

}  // namespace headrace::checkpoint
