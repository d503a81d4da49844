// SPDX-License-Identifier: Apache-2.0
// One file of a conversion. The order in which the writers of each format ask for bytes is that of the stream that brings them.
// See the header for threads.
// Owns the stream for the time of a call.
#include "convert/output.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <headrace/pickle_writer.h>

#include "convert/pickle_rewrite.h"
#include "convert/streamed_source.h"
#include "format/format_error.h"
#include "format/row_major.h"
#include "format/safetensors.h"
#include "format/torch_legacy.h"

namespace headrace::convert {
namespace {

std::unexpected<Error> with_path(Error error, const std::string& path) {
  if (error.path.empty()) error.path = path;
  return std::unexpected(std::move(error));
}

SaveOptions save_options(OutputContext& context, StreamedSource& source, const std::string& path) {
  return {.durability = context.options.durability,
          .existing = context.options.existing,
          .interrupted = context.options.progress.interrupted,
          .device_copy = {.copy = [&context, name = path.substr(path.rfind('/') + 1), copy = source.copier()](
                                      const ConstRegion& from, std::span<std::byte> target) -> Status {
                            Status copied = copy(from, target);
                            if (copied) context.meter.add(name, target.size());
                            return copied;
                          },
                          .staging = context.staging}};
}

// A source of these tensors, in this order.
Result<StreamedSource> tensor_source(OutputContext& context, std::vector<TensorOrder> orders) {
  std::vector<StorageRange> ranges;
  for (const TensorOrder& order : orders) {
    ranges.push_back(range_of(context.set, order.tensor));
    context.read_bytes += ranges.back().bytes;
  }
  if (context.sums != nullptr) {
    Status known = context.sums->expect(context.handle, ranges, context.options.progress.interrupted);
    if (!known) return std::unexpected(std::move(known).error());
  }
  std::vector<uint64_t> sizes;
  for (const TensorOrder& order : orders)
    sizes.push_back(ordered_bytes(context.set, order));
  auto open = [&context, orders = std::move(orders)](size_t first) -> Result<StreamedSource::Next> {
    Result<TensorStream> stream = TensorStream::create(context.handle, context.set, std::span(orders).subspan(first),
                                                       context.options.progress.interrupted, context.sums);
    if (!stream) return std::unexpected(std::move(stream).error());
    auto shared = std::make_shared<TensorStream>(*std::move(stream));
    // Bytes asked for a second time would be counted twice.
    return [&context, shared, counts = first == 0]() {
      const uint64_t before = shared->overflows();
      Result<std::optional<Piece>> piece = shared->next();
      if (counts) context.overflows += shared->overflows() - before;
      return piece;
    };
  };
  return StreamedSource(sizes, std::move(open));
}

Result<uint64_t> write_safetensors(OutputContext& context, const std::string& path,
                                   const std::vector<OutputTensor>& tensors, const Metadata& metadata) {
  const auto told = metadata.empty() ? std::nullopt : std::optional<Metadata>(metadata);
  std::vector<format::SafetensorsEntry> entries;
  for (const OutputTensor& tensor : tensors)
    entries.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .bytes = tensor.bytes});
  const Result<format::SafetensorsPlan> plan = format::plan_safetensors(entries, told);
  if (!plan) return with_path(plan.error(), path);
  std::vector<TensorOrder> orders;
  for (const uint32_t i : plan->order)
    orders.push_back(tensors[i].order);
  Result<StreamedSource> source = tensor_source(context, std::move(orders));
  if (!source) return std::unexpected(std::move(source).error());
  std::vector<NamedTensor> named;
  for (size_t place = 0; place < plan->order.size(); ++place) {
    const OutputTensor& tensor = tensors[plan->order[place]];
    named.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = source->region(place)});
  }
  return save_safetensors(context.handle, path, named, told, save_options(context, *source, path));
}

// The storages of a flat dict: tensors that are the same bytes, read in the same way, have one.
struct FlatDict {
  std::vector<TensorOrder> storages;
  std::vector<uint64_t> storage_bytes;
  std::vector<uint64_t> element_counts;
  std::string pickle;
};

Result<FlatDict> make_dict(const OutputContext& context, const std::vector<OutputTensor>& tensors) {
  FlatDict dict;
  std::map<std::tuple<uint32_t, uint64_t, uint64_t, DType, DType>, size_t> known;
  PickleWriter writer;
  writer.empty_dict();
  (void)writer.memoize();
  if (!tensors.empty()) writer.mark();
  for (const OutputTensor& tensor : tensors) {
    const StoredTensor& stored = context.set.stored(tensor.order.tensor);
    const uint64_t offset = context.set.files()[tensor.order.tensor.file].storages()[stored.storage].offset_bytes +
                            stored.storage_offset_bytes;
    size_t storage = dict.storages.size();
    if (stored.contiguous && tensor.bytes != 0) {
      const auto [at, added] =
          known.try_emplace({tensor.order.tensor.file, offset, stored.bytes, stored.dtype, tensor.dtype}, storage);
      storage = at->second;
    }
    const uint32_t element_bytes = dtype_facts(tensor.dtype).torch_bytes;
    if (storage == dict.storages.size()) {
      dict.storages.push_back(tensor.order);
      dict.storage_bytes.push_back(tensor.bytes);
      const bool untyped = dtype_facts(tensor.dtype).torch_storage.empty();
      dict.element_counts.push_back(untyped || element_bytes == 0 ? tensor.bytes : tensor.bytes / element_bytes);
    }
    const std::string key = fmt::format("{}", storage);
    const std::vector<int64_t> sizes(tensor.shape.begin(), tensor.shape.end());
    std::vector<int64_t> strides;
    if (!format::row_major(tensor.shape, element_bytes, strides))
      return std::unexpected(
          Error{.code = ErrorCode::unavailable,
                .operation = "convert",
                .path = context.set.files()[tensor.order.tensor.file].path(),
                .detail = fmt::format("tensor {}: torch has no strides for a shape as large as [{}]",
                                      format::quote_name(tensor.name), fmt::join(tensor.shape, ", "))});
    writer.text(tensor.name);
    writer.tensor(
        {.dtype = tensor.dtype, .storage_key = key, .storage_bytes = tensor.bytes, .sizes = sizes, .strides = strides});
  }
  if (!tensors.empty()) writer.setitems();
  Result<std::string> pickle = writer.finish();
  if (!pickle) return std::unexpected(std::move(pickle).error());
  dict.pickle = *std::move(pickle);
  return dict;
}

// Its keys are numbers, written in the order of their letters.
std::vector<size_t> legacy_order(const std::vector<std::string>& keys) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  std::ranges::sort(order, {}, [&](size_t i) { return std::string_view(keys[i]); });
  return order;
}

std::vector<std::string> number_keys(size_t count) {
  std::vector<std::string> keys;
  for (size_t i = 0; i < count; ++i)
    keys.push_back(fmt::format("{}", i));
  return keys;
}

Result<uint64_t> write_legacy_dict(OutputContext& context, const std::string& path, const FlatDict& dict) {
  const Result<Pickle> parsed = parse_pickle(std::as_bytes(std::span(dict.pickle)));
  if (!parsed) return with_path(parsed.error(), path);
  const Result<std::string> pickle = rewrite_pickle(
      *parsed, StorageIds::legacy, [](const PickleStorage& storage) { return std::string(storage.key); });
  if (!pickle) return with_path(pickle.error(), path);
  const std::vector<std::string> keys = number_keys(dict.storages.size());
  const std::vector<size_t> order = legacy_order(keys);
  std::vector<TensorOrder> orders;
  for (const size_t i : order)
    orders.push_back(dict.storages[i]);
  Result<StreamedSource> source = tensor_source(context, std::move(orders));
  if (!source) return std::unexpected(std::move(source).error());
  std::vector<TorchLegacyStorage> storages;
  for (size_t place = 0; place < order.size(); ++place)
    storages.push_back(
        {.key = keys[order[place]], .element_count = dict.element_counts[order[place]], .data = source->region(place)});
  return save_torch_legacy(context.handle, path, *pickle, storages, save_options(context, *source, path));
}

// A source of whole storages of the one file, in this order.
Result<StreamedSource> storage_source(OutputContext& context, std::vector<uint32_t> order) {
  const CheckpointFile& file = context.set.files().front();
  std::vector<uint64_t> sizes;
  std::vector<StorageRange> whole;
  for (const uint32_t i : order) {
    sizes.push_back(file.storages()[i].bytes);
    whole.push_back({.file = 0, .storage = i, .offset_bytes = 0, .bytes = sizes.back()});
    context.read_bytes += sizes.back();
  }
  if (context.sums != nullptr) {
    Status known = context.sums->expect(context.handle, whole, context.options.progress.interrupted);
    if (!known) return std::unexpected(std::move(known).error());
  }
  auto open = [&context, &file, order = std::move(order)](size_t first) -> Result<StreamedSource::Next> {
    Result<File> opened = File::from_descriptor(file.descriptor());
    if (!opened) return std::unexpected(std::move(opened).error());
    std::vector<FileRange> ranges;
    for (size_t i = first; i < order.size(); ++i)
      ranges.push_back({.file = 0,
                        .offset_bytes = file.storages()[order[i]].offset_bytes,
                        .bytes = file.storages()[order[i]].bytes});
    Result<RangeStream> stream = RangeStream::create(context.handle, {*std::move(opened)}, std::move(ranges),
                                                     context.options.progress.interrupted);
    if (!stream) return std::unexpected(std::move(stream).error());
    auto shared = std::make_shared<RangeStream>(*std::move(stream));
    return [&context, order, first, shared]() -> Result<std::optional<Piece>> {
      Result<std::optional<Piece>> piece = shared->next();
      if (!piece || !*piece || context.sums == nullptr) return piece;
      const std::span<const std::byte> bytes = (*piece)->bytes;
      const StorageRange range = {.file = 0,
                                  .storage = order[first + (*piece)->item],
                                  .offset_bytes = (*piece)->offset_bytes,
                                  .bytes = bytes.size()};
      if (Status good = context.sums->take(range, bytes); !good) return std::unexpected(std::move(good).error());
      return piece;
    };
  };
  return StreamedSource(sizes, std::move(open));
}

}  // namespace

Result<uint64_t> write_tensors(OutputContext& context, const std::string& path,
                               const std::vector<OutputTensor>& tensors, const Metadata& metadata) {
  if (context.options.format == CheckpointFormat::safetensors)
    return write_safetensors(context, path, tensors, metadata);
  const Result<FlatDict> dict = make_dict(context, tensors);
  if (!dict) return with_path(dict.error(), path);
  if (context.options.format == CheckpointFormat::torch_legacy) return write_legacy_dict(context, path, *dict);
  Result<StreamedSource> source = tensor_source(context, dict->storages);
  if (!source) return std::unexpected(std::move(source).error());
  std::vector<ConstRegion> storages;
  for (size_t i = 0; i < dict->storages.size(); ++i)
    storages.push_back(source->region(i));
  return save_torch_zip(context.handle, path, {.pickle = dict->pickle, .storages = storages},
                        save_options(context, *source, path));
}

Result<uint64_t> write_object(OutputContext& context, const std::string& path) {
  const CheckpointFile& file = context.set.files().front();
  const bool legacy = context.options.format == CheckpointFormat::torch_legacy;
  // In the order of the file, so that it is read from front to back.
  std::vector<uint32_t> order(file.storages().size());
  for (uint32_t i = 0; i < order.size(); ++i)
    order[i] = i;
  std::ranges::sort(order, {}, [&](uint32_t i) { return file.storages()[i].offset_bytes; });
  std::vector<size_t> place_of(order.size());
  for (size_t place = 0; place < order.size(); ++place)
    place_of[order[place]] = place;
  // What a legacy file says of a storage: how many elements it has, by the type that first names it.
  std::vector<std::optional<uint64_t>> element_counts(order.size());
  std::optional<Error> clash;
  const auto pickle_global_name = [&](PickleNode node) -> std::string_view {
    const std::optional<uint32_t> global = file.pickle()->global(node);
    return global ? std::string_view(file.pickle()->globals()[*global].qualified_name) : std::string_view();
  };
  const auto key_of = [&](const PickleStorage& storage) {
    const size_t place = place_of[*file.find_storage(storage.key)];
    std::optional<uint64_t>& count = element_counts[place];
    if (legacy && pickle_global_name(storage.type).ends_with("UntypedStorage"))
      clash = Error{.code = ErrorCode::unavailable,
                    .operation = "convert",
                    .path = path,
                    .detail =
                        "it holds elements of a type, such as uint16 or float8_e4m3fn, that torch.load does not "
                        "read from its legacy format"};
    if (legacy && count && *count != storage.numel)
      clash = Error{.code = ErrorCode::unavailable,
                    .operation = "convert",
                    .path = path,
                    .detail = "tensors of two types share a storage, which torch's legacy format cannot say"};
    count = storage.numel;
    return fmt::format("{}", place);
  };
  const Result<std::string> pickle =
      rewrite_pickle(*file.pickle(), legacy ? StorageIds::legacy : StorageIds::zip, key_of);
  if (!pickle) return with_path(pickle.error(), file.path());
  if (clash) return std::unexpected(*std::move(clash));
  if (!legacy) {
    Result<StreamedSource> source = storage_source(context, order);
    if (!source) return std::unexpected(std::move(source).error());
    std::vector<ConstRegion> storages;
    for (size_t place = 0; place < order.size(); ++place)
      storages.push_back(source->region(place));
    return save_torch_zip(context.handle, path, {.pickle = *pickle, .storages = storages},
                          save_options(context, *source, path));
  }
  const std::vector<std::string> keys = number_keys(order.size());
  const std::vector<size_t> sorted = legacy_order(keys);
  std::vector<uint32_t> in_file_order;
  for (const size_t place : sorted)
    in_file_order.push_back(order[place]);
  Result<StreamedSource> source = storage_source(context, std::move(in_file_order));
  if (!source) return std::unexpected(std::move(source).error());
  std::vector<TorchLegacyStorage> storages;
  for (size_t i = 0; i < sorted.size(); ++i)
    storages.push_back(
        {.key = keys[sorted[i]], .element_count = element_counts[sorted[i]].value_or(0), .data = source->region(i)});
  return save_torch_legacy(context.handle, path, *pickle, storages, save_options(context, *source, path));
}

}  // namespace headrace::convert
