// SPDX-License-Identifier: Apache-2.0
// From a pickle's graph to the tensors in it: names, element types, shapes, and which bytes of which storage they view.
// Any thread: pure functions of an opened file.
// Owns nothing.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/checkpoint_file.h"
#include "format/format_error.h"
#include "format/pickle_words.h"

namespace headrace::checkpoint {
namespace {

constexpr const char* kReading = "read torch file";
constexpr size_t kDimensionsMax = 64;  // as torch
constexpr size_t kViewFactsMax = 16;   // torch writes "conj" and "neg"
// torch's are numbers. They are sorted, and one text may be the key of many ids.
constexpr size_t kStorageKeyBytesMax = 1024;
// What is listed takes memory that the pickle does not: a name holds those of all containers around it, and a byte can name
// one object again. Tensors and containers are refused beyond this, other values no longer told one by one.
constexpr uint64_t kListedFree = uint64_t{64} << 20;
constexpr uint64_t kListedPerByte = 64;

std::string_view name_of(const Pickle& pickle, PickleNode node) {
  const std::optional<uint32_t> global = pickle.global(node);
  return global ? std::string_view(pickle.globals()[*global].qualified_name) : std::string_view();
}

class Lister {
 public:
  explicit Lister(const CheckpointFile::Impl& file)
      : file_(file),
        pickle_(*file.pickle),
        listed_bytes_max_(kListedFree + kListedPerByte * pickle_.consumed_bytes()),
        seen_(pickle_.node_count()) {}

  Result<PickledThings> run() {
    visit({}, pickle_.root());
    while (!waiting_.empty() && !error_) {
      const Container next = std::move(waiting_.back());
      waiting_.pop_back();
      listed_bytes_ -= next.bytes();
      look_into(next);
    }
    if (error_) return std::unexpected(*std::move(error_));
    // In the order of the pickle, for people; one tensor may be there under several names. (Not stable_sort: that of GCC 12 does
    // not compile with clang 19.)
    std::ranges::sort(tensors_, {}, [](const Found& found) { return std::pair(found.node, found.place); });
    PickledThings all;
    all.tensors.reserve(tensors_.size());
    for (Found& found : tensors_)
      all.tensors.push_back(std::move(found.tensor));
    all.others = std::move(others_);
    return all;
  }

 private:
  struct Container {
    std::string name;
    PickleNode node = 0;
    [[nodiscard]] uint64_t bytes() const { return sizeof(Container) + name.size(); }
  };
  struct Found {
    PickleNode node = 0;
    size_t place = 0;
    StoredTensor tensor;
  };
  struct ViewFacts {
    bool conjugate = false;
    bool negative = false;
  };

  // Joined only where it is kept: there may be many more values than names that can be told.
  struct Name {
    std::string_view container;
    std::string_view last;

    [[nodiscard]] std::string join() const {
      if (container.empty()) return std::string(last);
      std::string joined = fmt::format("{}.{}", container, last.substr(0, kJoinedNameBytesMax));
      if (joined.size() > kJoinedNameBytesMax) joined.resize(kJoinedNameBytesMax);
      return joined;
    }
  };

  bool is_dict(PickleNode node) const {
    return pickle_.kind(node) == PickleKind::dict ||
           (pickle_.kind(node) == PickleKind::call &&
            (pickle_.role(node) == PickleRole::ordered_dict || pickle_.role(node) == PickleRole::counter));
  }

  void visit(const Name& name, PickleNode node) {
    const PickleKind kind = pickle_.kind(node);
    const bool container = is_dict(node) || kind == PickleKind::list || kind == PickleKind::tuple;
    if (container) {
      // Told, so that nobody takes what is in it under its other name for all there is.
      if (seen_[node]) return add_other(name, "what stands under another name too", StoredValue::Kind::shared);
      seen_[node] = true;
      waiting_.push_back({name.join(), node});
      charge(node, waiting_.back().bytes());  // while it waits: of a deep nest one does
    } else if (kind != PickleKind::call || !find_tensor(name, node)) {
      const bool object = kind == PickleKind::call || kind == PickleKind::instance;
      add_other(name, describe(node), object ? StoredValue::Kind::object : StoredValue::Kind::plain);
    }
  }

  // For a tensor or a container, which cannot be left out.
  void charge(PickleNode node, uint64_t bytes) {
    listed_bytes_ += bytes;
    if (listed_bytes_ > listed_bytes_max_ && !error_)
      error_ = format::corrupt(kReading, pickle_.offset_bytes(node),
                               "the names of what the pickle holds take many times more memory than the pickle")
                   .error();
  }

  void add_other(const Name& name, std::string text, StoredValue::Kind kind = StoredValue::Kind::plain) {
    if (others_bytes_ > listed_bytes_max_) {
      ++untold_;
      return;
    }
    others_.push_back({.name = name.join(), .text = std::move(text), .kind = kind});
    others_bytes_ += sizeof(StoredValue) + others_.back().name.size() + others_.back().text.size();
  }

  // A value that is no tensor, for people.
  std::string describe(PickleNode node) const {
    switch (pickle_.kind(node)) {
      case PickleKind::none: return "None";
      case PickleKind::boolean: return *pickle_.boolean(node) ? "True" : "False";
      case PickleKind::integer: return fmt::format("{}", *pickle_.integer(node));
      case PickleKind::big_integer: return "an integer of more than 64 bits";
      case PickleKind::real: return fmt::format("{}", *pickle_.real(node));
      case PickleKind::text: return format::quote_name(*pickle_.text(node));
      case PickleKind::bytes: return "bytes";
      case PickleKind::dict: return "{}";
      case PickleKind::list: return "[]";
      case PickleKind::tuple: return "()";
      case PickleKind::set: return "a set";
      case PickleKind::global: return format::told(name_of(pickle_, node));
      case PickleKind::storage: return "a storage";
      case PickleKind::call:
      case PickleKind::instance: break;
    }
    const std::optional<PickleCall> call = pickle_.call(node);
    const std::string_view callee = call ? name_of(pickle_, call->callee) : std::string_view();
    return callee.empty() ? "an object" : fmt::format("an object made by {}", format::told(callee));
  }

  void hold_nothing(const Container& container) {
    others_.push_back({.name = container.name, .text = is_dict(container.node) ? "{}" : describe(container.node)});
  }

  void look_into(const Container& container) {
    look_at_items(container);
    if (untold_ == 0) return;
    others_.push_back({.name = Name{container.name, "?"}.join(), .text = fmt::format("{} more values", untold_)});
    untold_ = 0;
  }

  void look_at_items(const Container& container) {
    if (is_dict(container.node)) {
      const std::vector<PickleEntry> entries = pickle_.entries(container.node);
      if (entries.empty()) hold_nothing(container);
      for (const PickleEntry& entry : entries) {
        if (error_) return;
        if (const std::optional<std::string_view> text = pickle_.text(entry.key)) {
          visit({container.name, *text}, entry.value);
        } else if (const std::optional<int64_t> number = pickle_.integer(entry.key)) {
          visit({container.name, fmt::format("{}", *number)}, entry.value);
        } else {
          add_other({container.name, "?"}, "something whose key is neither text nor number");
        }
      }
      return;
    }
    const std::vector<PickleNode> appended = pickle_.appended(container.node);
    const std::span<const PickleNode> items =
        pickle_.kind(container.node) == PickleKind::list ? std::span(appended) : pickle_.tuple_items(container.node);
    if (items.empty()) hold_nothing(container);
    for (size_t i = 0; i < items.size() && !error_; ++i)
      visit({container.name, fmt::format("{}", i)}, items[i]);
  }

  // Through parameters and subclasses to the call that views a storage.
  // False where there is none.
  bool find_tensor(const Name& name, PickleNode node) {
    constexpr int kWrappersMax = 8;
    std::optional<PickleCall> call = pickle_.call(node);
    std::optional<bool> requires_grad;
    for (int i = 0; i < kWrappersMax && call; ++i) {
      const std::string_view callee = name_of(pickle_, call->callee);
      std::span<const PickleNode> arguments = pickle_.tuple_items(call->arguments);
      if (callee == "torch._utils._rebuild_parameter" || callee == "torch._utils._rebuild_parameter_with_state") {
        if (arguments.size() < 2) return false;
        requires_grad = pickle_.boolean(arguments[1]);
        call = pickle_.call(arguments[0]);
      } else if (callee == "torch._tensor._rebuild_from_type_v2") {
        if (arguments.size() < 3) return false;
        call = PickleCall{.callee = arguments[0], .arguments = arguments[2]};
      } else {
        const size_t before = tensors_.size();
        add_tensor(name, node, callee, arguments, requires_grad);
        return tensors_.size() != before || error_;
      }
    }
    return false;
  }

  void add_tensor(const Name& name, PickleNode node, std::string_view callee, std::span<const PickleNode> arguments,
                  std::optional<bool> requires_grad) {
    const bool v2 = callee == "torch._utils._rebuild_tensor_v2" || callee == "torch._utils._rebuild_tensor" ||
                    callee == "torch._utils._rebuild_qtensor";
    const bool v3 = callee == "torch._utils._rebuild_tensor_v3";
    if (!v2 && !v3) return;
    const auto wrong = [&](std::string_view what) {
      error_ = format::corrupt(kReading, pickle_.offset_bytes(node),
                               fmt::format("tensor {}: {}", format::quote_name(name.join()), what))
                   .error();
    };
    if (arguments.size() < 4 || (v3 && arguments.size() < 7)) return wrong("too few arguments");
    const std::optional<PickleStorage> storage = pickle_.storage(arguments[0]);
    const std::optional<int64_t> offset = pickle_.integer(arguments[1]);
    const std::optional<std::vector<int64_t>> shape = integers(arguments[2]);
    const std::optional<std::vector<int64_t>> strides = integers(arguments[3]);
    if (!storage || !offset || !shape || !strides || shape->size() != strides->size() || *offset < 0)
      return wrong("its arguments are not a storage, an offset, a shape and strides");
    std::optional<DType> dtype = storage_dtype(pickle_, *storage);
    if (v3) {
      std::string_view said = name_of(pickle_, arguments[6]);
      if (said.starts_with("torch.")) said.remove_prefix(6);
      dtype = dtype_from_name(said);
    } else if (!dtype) {
      dtype = DType::uint8;
    }
    // An element type of a newer torch, or several elements to a byte: not for us to name.
    if (!dtype || dtype == DType::quint4x2 || dtype == DType::quint2x4) return;
    StoredTensor tensor;
    const auto found = std::ranges::lower_bound(file_.storages, storage->key, {},
                                                [](const StoredBytes& one) { return std::string_view(one.key); });
    if (found == file_.storages.end() || found->key != storage->key) return wrong("its storage is not in the file");
    tensor.storage = static_cast<uint32_t>(found - file_.storages.begin());
    const uint64_t element_bytes = dtype_facts(*dtype).torch_bytes;
    const std::optional<uint64_t> extent = elements_from_the_first(*shape, *strides);
    if (!extent) return wrong("its shape or strides are negative or larger than memory");
    const auto first = static_cast<uint64_t>(*offset);
    if (*extent != 0 && (first > found->bytes / element_bytes || *extent > found->bytes / element_bytes - first))
      return wrong(
          fmt::format("it views {} elements from the {}th of a storage of {} bytes", *extent, first, found->bytes));
    tensor.dtype = *dtype;
    tensor.shape.assign(shape->begin(), shape->end());
    tensor.strides = *strides;
    tensor.storage_offset_bytes = *extent != 0 ? first * element_bytes : 0;
    const size_t facts = v3 ? 7 : 6;
    if (callee != "torch._utils._rebuild_qtensor" && arguments.size() > facts) {
      const std::optional<ViewFacts> view = view_facts(arguments[facts]);
      if (!view) return wrong(fmt::format("more than {} things are told of its view", kViewFactsMax));
      tensor.conjugate = view->conjugate;
      tensor.negative = view->negative;
    }
    tensor.contiguous = is_row_major(*shape, *strides) && !tensor.conjugate && !tensor.negative;
    uint64_t count = *extent == 0 ? 0 : 1;
    for (const int64_t size : *shape) {
      // A tensor of strides 0 may have more elements than its storage.
      if (__builtin_mul_overflow(count, static_cast<uint64_t>(size), &count)) return wrong("it is larger than memory");
    }
    if (__builtin_mul_overflow(count, element_bytes, &tensor.bytes)) return wrong("it is larger than memory");
    if (!requires_grad && arguments.size() > 4) requires_grad = pickle_.boolean(arguments[4]);
    tensor.requires_grad = requires_grad.value_or(false);
    tensor.name = name.join();
    charge(node, sizeof(Found) + tensor.name.size() + shape->size() * (sizeof(uint64_t) + sizeof(int64_t)));
    tensors_.push_back({node, tensors_.size(), std::move(tensor)});
  }

  // Tensors may share the dict: it is looked into once.
  std::optional<ViewFacts> view_facts(PickleNode dict) {
    const auto [known, added] = view_facts_.try_emplace(dict);
    if (!added) return known->second;
    const std::vector<PickleEntry> entries = pickle_.entries(dict);
    if (entries.size() > kViewFactsMax) return std::nullopt;
    for (const PickleEntry& entry : entries) {
      const bool yes = pickle_.boolean(entry.value).value_or(false);
      if (pickle_.text(entry.key) == "conj") known->second.conjugate = yes;
      if (pickle_.text(entry.key) == "neg") known->second.negative = yes;
    }
    return known->second;
  }

  // Of a tuple, or of torch.Size of one.
  std::optional<std::vector<int64_t>> integers(PickleNode node) const {
    if (const std::optional<PickleCall> call = pickle_.call(node)) {
      const std::span<const PickleNode> arguments = pickle_.tuple_items(call->arguments);
      if (name_of(pickle_, call->callee) != "torch.Size" || arguments.size() != 1) return std::nullopt;
      node = arguments[0];
    }
    if (pickle_.kind(node) != PickleKind::tuple) return std::nullopt;
    const std::span<const PickleNode> items = pickle_.tuple_items(node);
    if (items.size() > kDimensionsMax) return std::nullopt;
    std::vector<int64_t> numbers;
    for (const PickleNode item : items) {
      const std::optional<int64_t> number = pickle_.integer(item);
      if (!number) return std::nullopt;
      numbers.push_back(*number);
    }
    return numbers;
  }

  // How many elements of the storage lie between the first and the last of the tensor, both included.
  static std::optional<uint64_t> elements_from_the_first(std::span<const int64_t> shape,
                                                         std::span<const int64_t> strides) {
    int64_t last = 0;
    bool empty = false;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] < 0 || strides[i] < 0) return std::nullopt;
      empty |= shape[i] == 0;
      int64_t reach = 0;
      if (shape[i] > 0 && (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) ||
                           __builtin_add_overflow(last, reach, &last) || last == std::numeric_limits<int64_t>::max()))
        return std::nullopt;
    }
    return empty ? 0 : static_cast<uint64_t>(last) + 1;
  }

  static bool is_row_major(std::span<const int64_t> shape, std::span<const int64_t> strides) {
    if (std::ranges::any_of(shape, [](int64_t size) { return size == 0; })) return true;
    int64_t expected = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      if (shape[i] == 1) continue;
      if (strides[i] != expected || __builtin_mul_overflow(expected, shape[i], &expected)) return false;
    }
    return true;
  }

  const CheckpointFile::Impl& file_;
  const Pickle& pickle_;
  const uint64_t listed_bytes_max_;
  uint64_t listed_bytes_ = 0;  // of tensors, and of containers that wait
  uint64_t others_bytes_ = 0;
  uint64_t untold_ = 0;     // other values of the container that is looked into
  std::vector<bool> seen_;  // containers
  std::vector<Container> waiting_;
  std::vector<Found> tensors_;
  std::vector<StoredValue> others_;
  std::unordered_map<PickleNode, ViewFacts> view_facts_;  // by dict
  std::optional<Error> error_;
};

// UntypedStorage is one of bytes, and torch saves it beside a ByteStorage. Empty ones have any type.
bool same_storage(const Pickle& pickle, const PickleStorage& one, const PickleStorage& other) {
  if (one.numel != other.numel) return false;
  if (one.numel == 0 || one.type == other.type) return true;
  const auto dtype_of = [&](const PickleStorage& storage) {
    const bool untyped = name_of(pickle, storage.type).ends_with("UntypedStorage");
    return untyped ? DType::uint8 : storage_dtype(pickle, storage);
  };
  const std::optional<DType> dtype = dtype_of(one);
  return dtype ? dtype == dtype_of(other) : pickle.global(one.type) == pickle.global(other.type);
}

}  // namespace

std::optional<DType> storage_dtype(const Pickle& pickle, const PickleStorage& storage) {
  std::string_view name = name_of(pickle, storage.type);
  if (const size_t dot = name.rfind('.'); dot != std::string_view::npos) name.remove_prefix(dot + 1);
  return dtype_from_torch_storage(name);
}

std::optional<uint64_t> storage_bytes(const Pickle& pickle, const PickleStorage& storage) {
  const std::optional<DType> dtype = storage_dtype(pickle, storage);
  uint64_t element_bytes = 1;
  if (dtype) {
    element_bytes = dtype_facts(*dtype).torch_bytes;
  } else if (!name_of(pickle, storage.type).ends_with("UntypedStorage")) {
    return std::nullopt;
  }
  uint64_t bytes = 0;
  // More than any file has: the caller compares.
  if (__builtin_mul_overflow(storage.numel, element_bytes, &bytes)) return std::numeric_limits<uint64_t>::max();
  return bytes;
}

Result<std::vector<NamedStorage>> named_storages(const Pickle& pickle) {
  std::vector<NamedStorage> all;
  for (PickleNode node = 0; node < pickle.node_count(); ++node) {
    const std::optional<PickleStorage> storage = pickle.storage(node);
    if (!storage) continue;
    if (storage->key.size() > kStorageKeyBytesMax)
      return format::corrupt(kReading, pickle.offset_bytes(node),
                             fmt::format("the key of a storage is longer than {} bytes", kStorageKeyBytesMax));
    all.push_back({storage->key, node});
  }
  std::ranges::sort(all, {}, [](const NamedStorage& one) { return std::pair(one.key, one.node); });
  std::vector<NamedStorage> named;
  for (const NamedStorage& one : all) {
    if (named.empty() || named.back().key != one.key) {
      named.push_back(one);
    } else if (!same_storage(pickle, *pickle.storage(named.back().node), *pickle.storage(one.node))) {
      return format::corrupt(kReading, pickle.offset_bytes(one.node),
                             fmt::format("storage {} has another type or number of elements than where it is named "
                                         "first, and torch.load would take the first for both",
                                         format::quote_name(one.key)));
    }
  }
  return named;
}

Result<PickledThings> list_things(const CheckpointFile::Impl& file) { return Lister(file).run(); }

}  // namespace headrace::checkpoint
