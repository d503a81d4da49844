// SPDX-License-Identifier: Apache-2.0
// The pickle's graph read as the dataclasses of torch.distributed.checkpoint.metadata and filesystem, by their fields' names.
// Any thread: pure functions.
// Owns what it returns.
#include "format/dcp_metadata.h"

#include <algorithm>
#include <exception>
#include <map>
#include <string_view>
#include <utility>

#include <headrace/pickle.h>

#include "format/format_error.h"

namespace headrace::format {
namespace {

constexpr std::string_view kReading = "read DCP metadata";

// Everything that torch's own planner and file writer put into the file: a closed list of whole names, since a prefix would admit
// functions of the same modules.
bool is_expected(std::string_view global) {
  static constexpr std::string_view kNames[] = {
      "collections.OrderedDict",
      "pathlib.Path",
      "pathlib.PosixPath",
      "pathlib.WindowsPath",
      "pathlib._local.PosixPath",
      "torch.Size",
      "torch.device",
      "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
      "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
      "torch.distributed.checkpoint.filesystem._StorageInfo",
      "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
      "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
      "torch.distributed.checkpoint.metadata.Metadata",
      "torch.distributed.checkpoint.metadata.MetadataIndex",
      "torch.distributed.checkpoint.metadata.StorageMeta",
      "torch.distributed.checkpoint.metadata.TensorProperties",
      "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
      "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
      "torch.serialization._get_layout",
  };
  if (std::ranges::find(kNames, global) != std::end(kNames)) return true;
  return global.starts_with("torch.") && dtype_from_name(global.substr(6)).has_value();
}

class Reader {
 public:
  explicit Reader(const Pickle& pickle) : pickle_(pickle) {}

  Result<DcpMetadata> run() {
    DcpMetadata metadata;
    for (const PickleGlobal& global : pickle_.globals())
      if (!is_expected(global.qualified_name)) metadata.foreign_globals.push_back(global.qualified_name);
    if (class_of(pickle_.root()) != "torch.distributed.checkpoint.metadata.Metadata")
      return fail(pickle_.root(), "the pickle holds no Metadata of torch.distributed.checkpoint");
    const std::optional<PickleNode> version = field(pickle_.root(), "version");
    if (version) metadata.version = pickle_.text(*version).value_or("");
    const std::optional<PickleNode> state = field(pickle_.root(), "state_dict_metadata");
    if (!state || pickle_.kind(*state) != PickleKind::dict)
      return fail(pickle_.root(), "it has no state_dict_metadata");
    if (const std::optional<PickleNode> storage = field(pickle_.root(), "storage_data")) read_places(*storage);
    for (const PickleEntry& entry : pickle_.entries(*state)) {
      const std::optional<std::string_view> name = pickle_.text(entry.key);
      if (!name) return fail(entry.key, "a key of state_dict_metadata is no text");
      const std::string_view kind = class_of(entry.value);
      if (kind == "torch.distributed.checkpoint.metadata.BytesStorageMetadata") {
        metadata.objects.push_back({.name = std::string(*name), .place = place_of(*name, {})});
      } else if (kind == "torch.distributed.checkpoint.metadata.TensorStorageMetadata") {
        Result<DcpTensor> tensor = read_tensor(*name, entry.value);
        if (!tensor) return std::unexpected(std::move(tensor).error());
        metadata.tensors.push_back(*std::move(tensor));
      } else {
        return fail(entry.value, fmt::format("{} is described by {}, which is neither tensor nor bytes",
                                             quote_name(*name), kind.empty() ? "something unknown" : kind));
      }
    }
    return metadata;
  }

 private:
  std::unexpected<Error> fail(PickleNode node, std::string detail) const {
    return corrupt(kReading, pickle_.offset_bytes(node), std::move(detail));
  }

  // The class of an instance, by its qualified name.
  std::string_view class_of(PickleNode node) const {
    const std::optional<PickleCall> call = pickle_.call(node);
    const std::optional<uint32_t> global = call ? pickle_.global(call->callee) : std::nullopt;
    return global ? std::string_view(pickle_.globals()[*global].qualified_name) : std::string_view();
  }

  // Of a dataclass: its state is a dict from names to values.
  std::optional<PickleNode> field(PickleNode instance, std::string_view name) const {
    for (const PickleNode state : pickle_.states(instance))
      for (const PickleEntry& entry : pickle_.entries(state))
        if (pickle_.text(entry.key) == name) return entry.value;
    return std::nullopt;
  }

  // torch.Size(...), or a tuple or list of integers.
  std::optional<std::vector<uint64_t>> sizes(std::optional<PickleNode> node) const {
    if (!node) return std::nullopt;
    if (class_of(*node) == "torch.Size") {
      const std::span<const PickleNode> arguments = pickle_.tuple_items(pickle_.call(*node)->arguments);
      if (arguments.size() != 1) return std::nullopt;
      node = arguments.front();
    }
    if (pickle_.kind(*node) != PickleKind::tuple && pickle_.kind(*node) != PickleKind::list) return std::nullopt;
    const std::vector<PickleNode> appended = pickle_.appended(*node);
    const std::span<const PickleNode> items =
        pickle_.kind(*node) == PickleKind::list ? std::span(appended) : pickle_.tuple_items(*node);
    std::vector<uint64_t> all;
    for (const PickleNode item : items) {
      const std::optional<int64_t> size = pickle_.integer(item);
      if (!size || *size < 0) return std::nullopt;
      all.push_back(static_cast<uint64_t>(*size));
    }
    return all;
  }

  // What storage_data says of (name, offset): MetadataIndex to _StorageInfo.
  void read_places(PickleNode storage) {
    for (const PickleEntry& entry : pickle_.entries(storage)) {
      const std::optional<PickleNode> name = field(entry.key, "fqn");
      const std::optional<PickleNode> file = field(entry.value, "relative_path");
      const std::optional<PickleNode> offset = field(entry.value, "offset"), length = field(entry.value, "length");
      if (!name || !file || !offset || !length) continue;
      const std::optional<std::string_view> text = pickle_.text(*name), path = pickle_.text(*file);
      const std::optional<int64_t> begin = pickle_.integer(*offset), bytes = pickle_.integer(*length);
      if (!text || !path || !begin || !bytes || *begin < 0 || *bytes < 0) continue;
      places_.insert_or_assign(
          {std::string(*text), sizes(field(entry.key, "offset")).value_or(std::vector<uint64_t>())},
          DcpPlace{.file = std::string(*path),
                   .offset_bytes = static_cast<uint64_t>(*begin),
                   .bytes = static_cast<uint64_t>(*bytes)});
    }
  }

  std::optional<DcpPlace> place_of(std::string_view name, std::vector<uint64_t> offsets) const {
    const auto found = places_.find({std::string(name), std::move(offsets)});
    if (found == places_.end()) return std::nullopt;
    return found->second;
  }

  Result<DcpTensor> read_tensor(std::string_view name, PickleNode node) const {
    DcpTensor tensor = {.name = std::string(name)};
    const std::optional<std::vector<uint64_t>> shape = sizes(field(node, "size"));
    const std::optional<PickleNode> chunks = field(node, "chunks");
    if (!shape || !chunks || pickle_.kind(*chunks) != PickleKind::list)
      return fail(node, fmt::format("tensor {} has no size or no chunks", quote_name(name)));
    tensor.shape = *shape;
    if (const std::optional<PickleNode> properties = field_or_state(node)) {
      const std::span<const PickleNode> facts = pickle_.tuple_items(*properties);
      if (!facts.empty() && pickle_.global(facts.front())) {
        std::string_view global = pickle_.globals()[*pickle_.global(facts.front())].qualified_name;
        if (global.starts_with("torch.")) global.remove_prefix(6);
        tensor.dtype_name = global;
        tensor.dtype = dtype_from_name(global);
      }
    }
    for (const PickleNode chunk : pickle_.appended(*chunks)) {
      const std::optional<std::vector<uint64_t>> offsets = sizes(field(chunk, "offsets")),
                                                 lengths = sizes(field(chunk, "sizes"));
      if (!offsets || !lengths)
        return fail(chunk, fmt::format("a chunk of tensor {} has no offsets or sizes", quote_name(name)));
      DcpPiece piece = {.offsets = *offsets, .shape = *lengths, .place = place_of(name, *offsets)};
      // A tensor without dimensions is told without an offset by some writers.
      if (!piece.place && offsets->empty()) piece.place = place_of(name, {});
      tensor.pieces.push_back(std::move(piece));
    }
    return tensor;
  }

  // TensorProperties has a tuple as its state: dtype, layout, requires_grad, memory format, pin_memory.
  std::optional<PickleNode> field_or_state(PickleNode tensor) const {
    const std::optional<PickleNode> properties = field(tensor, "properties");
    if (!properties) return std::nullopt;
    for (const PickleNode state : pickle_.states(*properties))
      if (pickle_.kind(state) == PickleKind::tuple) return state;
    return std::nullopt;
  }

  const Pickle& pickle_;
  std::map<std::pair<std::string, std::vector<uint64_t>>, DcpPlace> places_;
};

}  // namespace

Result<DcpMetadata> parse_dcp_metadata(std::span<const std::byte> pickle) noexcept {
  try {
    const Result<Pickle> parsed =
        parse_pickle(pickle, {.unknown_globals = UnknownGlobals::collect, .protocols = PickleProtocols::later});
    if (!parsed) return std::unexpected(parsed.error());
    return Reader(*parsed).run();
  } catch (const std::exception&) {
    return no_memory(kReading);
  }
}

std::string check_dcp_pieces(const DcpTensor& tensor) {
  const auto count = [](const std::vector<uint64_t>& shape, uint64_t& elements) {
    elements = 1;
    for (const uint64_t size : shape)
      if (__builtin_mul_overflow(elements, size, &elements)) return false;
    return true;
  };
  uint64_t elements = 0, pieces = 0;
  if (!count(tensor.shape, elements)) return "its shape is larger than memory";
  for (const DcpPiece& piece : tensor.pieces) {
    if (piece.offsets.size() != tensor.shape.size() || piece.shape.size() != tensor.shape.size())
      return "a piece of it has another number of dimensions";
    for (size_t d = 0; d < tensor.shape.size(); ++d)
      if (piece.offsets[d] > tensor.shape[d] || piece.shape[d] > tensor.shape[d] - piece.offsets[d])
        return "a piece of it does not lie inside it";
    uint64_t here = 0;
    if (!count(piece.shape, here) || __builtin_add_overflow(pieces, here, &pieces))
      return "its pieces are larger than memory";
  }
  if (pieces != elements) return fmt::format("its pieces have {} elements together, and it has {}", pieces, elements);
  return {};
}

}  // namespace headrace::format
