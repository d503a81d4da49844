// SPDX-License-Identifier: Apache-2.0
// The pickle's graph read as the dataclasses of torch.distributed.checkpoint.metadata and filesystem, by their fields' names.
// Any thread: pure functions.
// Owns what it returns.
#include "format/dcp_metadata.h"

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <headrace/pickle.h>

#include "format/format_error.h"

namespace headrace::format {
namespace {

constexpr std::string_view kReading = "read DCP metadata";
constexpr size_t kDimensionsMax = 64;  // as torch

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

// Errors stay until run() looks: functions give nothing once there is one.
class Reader {
 public:
  Reader(const Pickle& pickle, uint64_t bytes, const std::function<bool()>& interrupted)
      : pickle_(pickle), work_max_(bytes), interrupted_(interrupted), first_steps_(pickle.node_count(), kPickleNoStep) {
    for (uint32_t i = 0; i < pickle.steps().size(); ++i) {
      const PickleStep& step = pickle.steps()[i];
      if (step.kind != PickleStepKind::create && first_steps_[step.first] == kPickleNoStep)
        first_steps_[step.first] = i;
    }
  }

  Result<DcpMetadata> run() {
    for (const PickleGlobal& global : pickle_.globals())
      if (!is_expected(global.qualified_name)) metadata_.foreign_globals.push_back(global.qualified_name);
    read_all();
    if (error_) return std::unexpected(*std::move(error_));
    return std::move(metadata_);
  }

 private:
  // What a writer needs at the least for one: a chunk takes 40 bytes of pickle and more, its place as many.
  static constexpr uint64_t kChunkBytes = 16;

  void fail(PickleNode node, std::string detail) {
    if (!error_) error_ = corrupt(kReading, pickle_.offset_bytes(node), std::move(detail)).error();
  }

  // Every step that the graph makes us take was paid for by bytes of the pickle, unless objects are shared.
  bool spend(PickleNode node, uint64_t work) {
    constexpr uint64_t kAskEvery = 256;
    if (error_) return false;
    work_ += work;
    if (work_ > work_max_)
      fail(node,
           "its objects stand at so many places that there is more to read than the file holds; writers of torch share "
           "none of them");
    if (++spent_ % kAskEvery == 0 && interrupted_ && interrupted_())
      error_ = Error{.code = ErrorCode::interrupted, .operation = std::string(kReading), .detail = "it was stopped"};
    return !error_;
  }

  // Calls `use` with the operands and the index of each step of `kind` that `node` went through, in order.
  template <typename Use>
  void for_steps(PickleNode node, PickleStepKind kind, const Use& use) {
    for (uint32_t i = first_steps_[node]; i != kPickleNoStep; i = pickle_.steps()[i].next) {
      const PickleStep& step = pickle_.steps()[i];
      if (!spend(node, 1)) return;
      if (step.kind == kind) use(pickle_.operands(step), i);
    }
  }

  // Those that are set behind the step `end` are refused.
  template <typename Use>
  void for_entries(PickleNode dict, const Use& use, uint32_t end = kPickleNoStep) {
    for_steps(dict, PickleStepKind::set_items, [&](std::span<const PickleNode> items, uint32_t step) {
      if (step > end) return fail(dict, "the state of an object is changed after it was set");
      for (size_t i = 0; i + 1 < items.size() && spend(dict, 1); i += 2)
        use(items[i], items[i + 1]);
    });
  }

  // Of a dataclass: its states are dicts from names to values, and the last one counts, as in Python. What Python would take
  // besides, and no writer of torch writes, is refused: arguments of a constructor, states that are no such dict, and dicts
  // that go on after Python copied them.
  template <size_t kCount>
  std::array<std::optional<PickleNode>, kCount> fields(PickleNode instance, const std::string_view (&names)[kCount]) {
    std::array<std::optional<PickleNode>, kCount> found;
    const std::optional<PickleCall> call = pickle_.call(instance);
    if (call && pickle_.kind(instance) == PickleKind::call && !pickle_.tuple_items(call->arguments).empty()) {
      fail(instance, "an object is made from arguments; writers of torch give it a state");
      return found;
    }
    const auto add = [&](PickleNode key, PickleNode value) {
      if (!pickle_.text(key)) return fail(key, "a field of an object has a name that is no text");
      for (size_t i = 0; i < kCount; ++i)
        if (pickle_.text(key) == names[i]) found[i] = value;
    };
    for_steps(instance, PickleStepKind::build, [&](std::span<const PickleNode> state, uint32_t step) {
      if (pickle_.kind(state.front()) != PickleKind::dict) return fail(instance, "the state of an object is no dict");
      for_entries(state.front(), add, step);
    });
    return found;
  }

  // The class of an instance, by its qualified name.
  std::string_view class_of(PickleNode node) const {
    const std::optional<PickleCall> call = pickle_.call(node);
    const std::optional<uint32_t> global = call ? pickle_.global(call->callee) : std::nullopt;
    return global ? std::string_view(pickle_.globals()[*global].qualified_name) : std::string_view();
  }

  // torch.Size(...), or a tuple or list of integers.
  std::optional<std::vector<uint64_t>> sizes(std::optional<PickleNode> node) {
    if (!node) return std::nullopt;
    if (class_of(*node) == "torch.Size") {
      const std::span<const PickleNode> arguments = pickle_.tuple_items(pickle_.call(*node)->arguments);
      if (arguments.size() != 1) return std::nullopt;
      node = arguments.front();
    }
    std::vector<uint64_t> all;
    bool good = true;
    const auto add = [&](std::span<const PickleNode> items) {
      for (const PickleNode item : items) {
        const std::optional<int64_t> size = pickle_.integer(item);
        good = good && spend(item, 1) && size && *size >= 0 && all.size() < kDimensionsMax;
        if (!good) return;
        all.push_back(static_cast<uint64_t>(*size));
      }
    };
    if (pickle_.kind(*node) == PickleKind::tuple)
      add(pickle_.tuple_items(*node));
    else if (pickle_.kind(*node) == PickleKind::list)
      for_steps(*node, PickleStepKind::append, [&](std::span<const PickleNode> items, uint32_t) { add(items); });
    else
      return std::nullopt;
    if (!good || error_) return std::nullopt;
    return all;
  }

  // Equal texts have one number. A node that stands at many places is looked at once.
  uint32_t number_of(PickleNode text) {
    const auto [known, added] = numbers_by_node_.try_emplace(text, 0);
    if (added) {
      const auto number = static_cast<uint32_t>(numbers_by_text_.size());
      known->second = numbers_by_text_.try_emplace(*pickle_.text(text), number).first->second;
    }
    return known->second;
  }

  void read_all() {
    const PickleNode root = pickle_.root();
    if (class_of(root) != "torch.distributed.checkpoint.metadata.Metadata")
      return fail(root, "the pickle holds no Metadata of torch.distributed.checkpoint");
    const auto [version, state, storage] = fields(root, {"version", "state_dict_metadata", "storage_data"});
    if (version) metadata_.version = pickle_.text(*version).value_or("");
    if (!state || pickle_.kind(*state) != PickleKind::dict) return fail(root, "it has no state_dict_metadata");
    if (storage) read_places(*storage);
    // A key that is set twice keeps its place and gets the last value.
    std::vector<PickleEntry> entries;
    std::unordered_map<uint32_t, size_t> places;
    for_entries(*state, [&](PickleNode key, PickleNode value) {
      if (!pickle_.text(key)) return fail(key, "a key of state_dict_metadata is no text");
      const auto [known, added] = places.try_emplace(number_of(key), entries.size());
      if (added) entries.push_back({.key = key});
      entries[known->second].value = value;
    });
    for (const PickleEntry& entry : entries) {
      if (error_) return;
      read_described(entry.key, entry.value);
    }
  }

  void read_described(PickleNode key, PickleNode value) {
    const std::string_view name = *pickle_.text(key);
    const std::string_view kind = class_of(value);
    if (kind == "torch.distributed.checkpoint.metadata.BytesStorageMetadata")
      metadata_.objects.push_back({.name = std::string(name), .place = place_of(number_of(key), std::nullopt)});
    else if (kind == "torch.distributed.checkpoint.metadata.TensorStorageMetadata")
      read_tensor(key, value);
    else
      fail(value, fmt::format("{} is described by {}, which is neither tensor nor bytes", quote_name(name),
                              kind.empty() ? "something unknown" : quote_name(kind)));
  }

  // What storage_data says of (name, offset): MetadataIndex to _StorageInfo.
  void read_places(PickleNode storage) {
    std::unordered_map<uint32_t, uint32_t> files;
    for_entries(storage, [&](PickleNode key, PickleNode value) {
      // An object of another class is another key, whatever it holds.
      if (class_of(key) != "torch.distributed.checkpoint.metadata.MetadataIndex") return;
      const auto [name, offsets] = fields(key, {"fqn", "offset"});
      const auto [file, offset, length, transforms] =
          fields(value, {"relative_path", "offset", "length", "transform_descriptors"});
      if (!name || !file || !offset || !length || !pickle_.text(*name) || !pickle_.text(*file)) return;
      const std::optional<int64_t> begin = pickle_.integer(*offset), bytes = pickle_.integer(*length);
      if (!begin || !bytes || *begin < 0 || *bytes < 0) return;
      if (pickle_.text(*file)->size() > kDcpPathBytesMax)
        return fail(*file, fmt::format("the path of a piece is longer than {} bytes", kDcpPathBytesMax));
      const auto [known, added] = files.try_emplace(number_of(*file), static_cast<uint32_t>(metadata_.files.size()));
      if (added) metadata_.files.emplace_back(*pickle_.text(*file));
      // As torch looks it up: no offset is another key than that of a tensor without dimensions.
      Offsets at;
      if (offsets && pickle_.kind(*offsets) != PickleKind::none) {
        at = sizes(offsets);
        if (!at || pickle_.kind(*offsets) == PickleKind::list) return;
      }
      const auto [place, fresh] =
          places_.try_emplace({number_of(*name), std::move(at)}, static_cast<uint32_t>(metadata_.places.size()));
      if (fresh) metadata_.places.emplace_back();
      metadata_.places[place->second] = {.file = known->second,
                                         .offset_bytes = static_cast<uint64_t>(*begin),
                                         .bytes = static_cast<uint64_t>(*bytes),
                                         .transformed = transforms && holds_any(*transforms)};
    });
  }

  bool holds_any(PickleNode items) {
    bool any = !pickle_.tuple_items(items).empty();
    for_steps(items, PickleStepKind::append, [&](std::span<const PickleNode> more, uint32_t) { any |= !more.empty(); });
    return any;
  }

  using Offsets = std::optional<std::vector<uint64_t>>;

  std::optional<uint32_t> place_of(uint32_t name, Offsets offsets) const {
    const auto found = places_.find({name, std::move(offsets)});
    if (found == places_.end()) return std::nullopt;
    return found->second;
  }

  void read_tensor(PickleNode key, PickleNode node) {
    constexpr size_t kDtypeBytesMax = 80;  // it is kept for each tensor, and they may share it
    DcpTensor tensor = {.name = std::string(*pickle_.text(key))};
    const auto [size, chunks, properties] = fields(node, {"size", "chunks", "properties"});
    const std::optional<std::vector<uint64_t>> shape = sizes(size);
    if (!shape || !chunks || (pickle_.kind(*chunks) != PickleKind::list && pickle_.kind(*chunks) != PickleKind::tuple))
      return fail(node, fmt::format("tensor {} has no size or no chunks", quote_name(tensor.name)));
    tensor.shape = *shape;
    std::string_view dtype = properties ? dtype_of(*properties) : std::string_view();
    if (dtype.empty())
      return fail(properties.value_or(node), fmt::format("tensor {} has no element type", quote_name(tensor.name)));
    if (dtype.size() > kDtypeBytesMax)
      return fail(properties.value_or(node), fmt::format("the element type of tensor {} has a name of {} bytes",
                                                         quote_name(tensor.name), dtype.size()));
    if (dtype.starts_with("torch.")) dtype.remove_prefix(6);
    tensor.dtype_name = dtype;
    tensor.dtype = dtype_from_name(dtype);
    const uint32_t name = number_of(key);
    const auto add = [&](std::span<const PickleNode> all) {
      for (const PickleNode chunk : all) {
        if (!spend(chunk, kChunkBytes)) return;
        const auto [begin, lengths] = fields(chunk, {"offsets", "sizes"});
        const Offsets offsets = sizes(begin), counts = sizes(lengths);
        if (!offsets || !counts)
          return fail(chunk, fmt::format("a chunk of tensor {} has no offsets or sizes", quote_name(tensor.name)));
        tensor.pieces.push_back({.offsets = *offsets, .shape = *counts, .place = place_of(name, offsets)});
      }
    };
    if (pickle_.kind(*chunks) == PickleKind::tuple)
      add(pickle_.tuple_items(*chunks));
    else
      for_steps(*chunks, PickleStepKind::append, [&](std::span<const PickleNode> all, uint32_t) { add(all); });
    metadata_.tensors.push_back(std::move(tensor));
  }

  // TensorProperties has a tuple as its state: dtype, layout, requires_grad, memory format, pin_memory.
  std::string_view dtype_of(PickleNode properties) {
    std::string_view dtype;
    for_steps(properties, PickleStepKind::build, [&](std::span<const PickleNode> state, uint32_t) {
      const std::span<const PickleNode> facts = pickle_.tuple_items(state.front());
      const std::optional<uint32_t> global = facts.empty() ? std::nullopt : pickle_.global(facts.front());
      dtype = global ? std::string_view(pickle_.globals()[*global].qualified_name) : std::string_view();
    });
    return dtype;
  }

  const Pickle& pickle_;
  uint64_t work_max_;
  const std::function<bool()>& interrupted_;
  uint64_t work_ = 0;
  uint64_t spent_ = 0;
  std::vector<uint32_t> first_steps_;  // of each node, that is no create
  std::unordered_map<PickleNode, uint32_t> numbers_by_node_;
  std::map<std::string_view, uint32_t> numbers_by_text_;
  std::map<std::pair<uint32_t, Offsets>, uint32_t> places_;  // by name and offsets: index into metadata_.places
  std::optional<Error> error_;
  DcpMetadata metadata_;
};

}  // namespace

Result<DcpMetadata> parse_dcp_metadata(std::span<const std::byte> pickle,
                                       const std::function<bool()>& interrupted) noexcept {
  try {
    const Result<Pickle> parsed =
        parse_pickle(pickle, {.unknown_globals = UnknownGlobals::collect, .protocols = PickleProtocols::later});
    if (!parsed) return std::unexpected(parsed.error());
    return Reader(*parsed, pickle.size(), interrupted).run();
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
  std::vector<const DcpPiece*> full;
  for (const DcpPiece& piece : tensor.pieces)
    if (std::ranges::find(piece.shape, uint64_t{0}) == piece.shape.end()) full.push_back(&piece);
  std::ranges::sort(full, {}, [](const DcpPiece* piece) -> const auto& { return piece->offsets; });
  const auto same = [](const DcpPiece* a, const DcpPiece* b) { return a->offsets == b->offsets; };
  if (std::ranges::adjacent_find(full, same) != full.end()) return "two pieces of it begin at the same element";
  if (pieces != elements) return fmt::format("its pieces have {} elements together, and it has {}", pieces, elements);
  return {};
}

}  // namespace headrace::format
