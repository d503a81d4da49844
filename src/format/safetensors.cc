// SPDX-License-Identifier: Apache-2.0
// Reading a header: nlohmann's event parser feeds a small automaton, then the ranges are checked against each other.
// Any thread: each call has its own state.
// The cursor and the text belong to the call; nothing outlives it.
#include "format/safetensors.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <new>
#include <numeric>
#include <tuple>

#include <nlohmann/json.hpp>

#include "base/little_endian.h"
#include "format/duplicates.h"
#include "format/format_error.h"
#include "format/utf8.h"

namespace headrace::format {
namespace {

constexpr std::string_view kOperation = "read safetensors header";

std::unexpected<Error> broken(uint64_t offset_bytes, std::string detail) {
  return corrupt(kOperation, offset_bytes, std::move(detail));
}

// What the parser reads through: it counts, so that a fault can be placed in the file.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator() = default;
  explicit CountingIterator(const char** cursor) : cursor_(cursor) {}
  reference operator*() const { return **cursor_; }
  CountingIterator& operator++() {
    ++*cursor_;
    return *this;
  }
  CountingIterator operator++(int) {
    const CountingIterator before = *this;
    ++*cursor_;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return *cursor_ == *other.cursor_; }

 private:
  const char** cursor_ = nullptr;
};

// Takes the events of one header and builds its tensors. A handler returns false after it has set `fault_`.
class Events {
 public:
  Events(std::string_view text, const char** cursor) : text_(text), cursor_(cursor), last_(text.data()) {}

  std::vector<SafetensorsTensor> tensors;
  std::vector<uint32_t> places;  // per tensor: where its name begins in the text
  std::optional<SafetensorsMetadata> metadata;
  std::vector<uint32_t> metadata_places;  // per key

  const Error& fault() const { return fault_; }

  // ---- called by the parser; the names are its own ----

  using string_t = std::string;
  bool null() {
    if (where_ == Where::top && in_metadata_) {
      in_metadata_ = false;  // the same as none
      return done();
    }
    return other("null");
  }
  bool boolean(bool) { return other("a boolean"); }
  bool number_integer(int64_t) { return other("a negative number"); }
  bool number_float(double, const string_t&) { return other("a number that is no integer below 2^64"); }
  bool number_unsigned(uint64_t value) {
    if (where_ == Where::shape) {
      shape_.push_back(value);
      return done();
    }
    if (where_ == Where::offsets) {
      if (offset_count_ == offsets_.size()) return wrong("more than two offsets");
      offsets_[offset_count_++] = value;
      return done();
    }
    return other("a number");
  }
  bool string(string_t& value) {
    if (where_ == Where::metadata) {
      metadata->back().second = value;
      return done();
    }
    if (where_ != Where::tensor || field_ != Field::dtype) return other("a string");
    const auto dtype = dtype_from_safetensors(value);
    if (!dtype) return fail(fmt::format("{}: the element type {} is unknown", subject(), quote_name(value)));
    tensors.back().dtype = *dtype;
    return done();
  }
  bool binary(nlohmann::json::binary_t&) { return other("binary data"); }  // JSON has none

  bool start_object(size_t) {
    if (!deeper()) return false;
    switch (where_) {
      case Where::before: where_ = Where::top; return done();
      case Where::top:
        where_ = in_metadata_ ? Where::metadata : Where::tensor;
        if (in_metadata_) metadata.emplace();
        return done();
      case Where::tensor:
        if (field_ != Field::unknown) break;
        where_ = Where::ignored;
        ignored_from_ = depth_;
        return done();
      case Where::ignored: return done();
      case Where::metadata:
      case Where::shape:
      case Where::offsets: break;
    }
    return other("an object");
  }
  bool start_array(size_t) {
    if (!deeper()) return false;
    if (where_ == Where::ignored) return done();
    if (where_ != Where::tensor || field_ == Field::dtype) return other("an array");
    switch (field_) {
      case Field::shape: where_ = Where::shape; break;
      case Field::offsets: where_ = Where::offsets; break;
      case Field::dtype:
      case Field::unknown:
        where_ = Where::ignored;
        ignored_from_ = depth_;
        break;
    }
    return done();
  }
  bool end_object() {
    switch (where_) {
      case Where::tensor:
        if (!finish_tensor()) return false;
        where_ = Where::top;
        break;
      case Where::metadata:
        where_ = Where::top;
        in_metadata_ = false;
        break;
      case Where::ignored: leave_ignored(); break;
      case Where::before:
      case Where::top:
      case Where::shape:
      case Where::offsets: break;
    }
    --depth_;
    return done();
  }
  bool end_array() {
    if (where_ == Where::ignored) {
      leave_ignored();
    } else if (where_ == Where::offsets && offset_count_ != offsets_.size()) {
      return wrong("not two offsets");
    } else {
      where_ = Where::tensor;
    }
    --depth_;
    return done();
  }
  bool key(string_t& name) {
    switch (where_) {
      case Where::top: return top_key(name);
      case Where::metadata:
        metadata_places.push_back(place());
        metadata->emplace_back(name, std::string());
        break;
      case Where::tensor: return field_key(name);
      case Where::before:
      case Where::shape:
      case Where::offsets:
      case Where::ignored: break;
    }
    return done();
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) {
    const char* begin = text_.data();
    const char* at = *cursor_ > begin ? *cursor_ - 1 : begin;
    const bool ended = *cursor_ == begin + text_.size();
    return fail_at(at, fmt::format("{}: the header is no valid JSON{}", subject(), ended ? ", or ends too early" : ""));
  }

 private:
  enum class Where : uint8_t { before, top, metadata, tensor, shape, offsets, ignored };
  enum class Field : uint8_t { dtype, shape, offsets, unknown };

  bool done() {
    last_ = *cursor_;
    return true;
  }

  // The first byte of what the parser took last. Between two events stand only blanks and punctuation.
  const char* token() const {
    const char* at = last_;
    while (at < *cursor_ && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r' || *at == ',' || *at == ':'))
      ++at;
    return at;
  }

  uint32_t place() const { return static_cast<uint32_t>(token() - text_.data()); }

  std::string subject() const {
    if (where_ == Where::before || (where_ == Where::top && !in_tensor_ && !in_metadata_)) return "the header";
    if (in_metadata_) return "__metadata__";
    return "tensor " + quote_name(tensors.back().name);
  }
  bool fail_at(const char* at, std::string detail) {
    fault_ = broken(kSafetensorsLengthBytes + static_cast<uint64_t>(at - text_.data()), std::move(detail)).error();
    return false;
  }
  bool fail(std::string detail) { return fail_at(token(), std::move(detail)); }
  bool wrong(std::string_view what) { return fail(fmt::format("{}: {}", subject(), what)); }

  // A value of a kind that this place does not take, unless it takes all.
  bool other(std::string_view kind) {
    if (where_ == Where::ignored || (where_ == Where::tensor && field_ == Field::unknown)) return done();
    std::string_view wanted = "an object";
    if (where_ == Where::metadata) wanted = "a string";
    if (where_ == Where::shape) wanted = "an integer of the shape, not negative";
    if (where_ == Where::offsets) wanted = "an offset, not negative";
    if (where_ == Where::tensor && field_ == Field::dtype) wanted = "the name of an element type";
    if (where_ == Where::tensor && field_ == Field::shape) wanted = "an array for its shape";
    if (where_ == Where::tensor && field_ == Field::offsets) wanted = "an array of two data_offsets";
    return fail(fmt::format("{}: {} stands where {} has to be", subject(), kind, wanted));
  }

  bool deeper() {
    if (++depth_ <= kSafetensorsNestingMax) return true;
    return fail(fmt::format("{}: more than {} containers within each other", subject(), kSafetensorsNestingMax));
  }
  void leave_ignored() {
    if (depth_ == ignored_from_) where_ = Where::tensor;
  }

  bool top_key(const std::string& name) {
    in_metadata_ = name == kSafetensorsMetadataKey;
    in_tensor_ = !in_metadata_;
    if (in_metadata_) {
      if (metadata_seen_) return wrong("stands in the header twice");
      metadata_seen_ = true;
      return done();
    }
    places.push_back(place());
    tensors.emplace_back().name = name;
    field_ = Field::unknown;
    fields_seen_ = 0;
    offset_count_ = 0;
    shape_.clear();
    return done();
  }

  bool field_key(std::string_view name) {
    field_ = name == "dtype"          ? Field::dtype
             : name == "shape"        ? Field::shape
             : name == "data_offsets" ? Field::offsets
                                      : Field::unknown;
    if (field_ == Field::unknown) return done();
    const unsigned bit = 1U << static_cast<unsigned>(field_);
    if ((fields_seen_ & bit) != 0) return fail(fmt::format("{}: '{}' stands there twice", subject(), name));
    fields_seen_ |= bit;
    return done();
  }

  bool finish_tensor() {
    constexpr std::string_view kNames[] = {"dtype", "shape", "data_offsets"};
    for (unsigned i = 0; i < std::size(kNames); ++i)
      if ((fields_seen_ & 1U << i) == 0) return fail(fmt::format("{}: '{}' is missing", subject(), kNames[i]));
    SafetensorsTensor& tensor = tensors.back();
    tensor.shape.assign(shape_.begin(), shape_.end());
    tensor.begin_bytes = offsets_[0];
    tensor.end_bytes = offsets_[1];
    in_tensor_ = false;
    return true;
  }

  std::string_view text_;
  const char** cursor_;
  const char* last_;  // where the parser stood after the event before
  Where where_ = Where::before;
  Field field_ = Field::unknown;
  bool in_metadata_ = false;  // from the key to the end of its value
  bool in_tensor_ = false;
  bool metadata_seen_ = false;
  unsigned fields_seen_ = 0;
  uint32_t depth_ = 0, ignored_from_ = 0;
  std::vector<uint64_t> shape_;
  std::array<uint64_t, 2> offsets_ = {};
  size_t offset_count_ = 0;
  Error fault_;
};

// ---- what the tensors say together ----

// Puts the tensors into the order of their bytes. Empty ones go before the one that begins where they stand.
void sort_by_range(std::vector<SafetensorsTensor>& tensors, std::vector<uint32_t>& places) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto before = [&](uint32_t a, uint32_t b) {
    return std::tie(tensors[a].begin_bytes, tensors[a].end_bytes, places[a]) <
           std::tie(tensors[b].begin_bytes, tensors[b].end_bytes, places[b]);
  };
  if (std::ranges::is_sorted(order, before)) return;  // as the reference writes them
  std::ranges::sort(order, before);
  std::vector<SafetensorsTensor> sorted;
  std::vector<uint32_t> sorted_places;
  sorted.reserve(order.size());
  sorted_places.reserve(order.size());
  for (const uint32_t i : order) {
    sorted.push_back(std::move(tensors[i]));
    sorted_places.push_back(places[i]);
  }
  tensors = std::move(sorted);
  places = std::move(sorted_places);
}

Status check_names(const Events& events) {
  const auto& tensors = events.tensors;
  const auto tensor_name = [&](uint32_t i) -> std::string_view { return tensors[i].name; };
  if (const auto twin = first_duplicate(static_cast<uint32_t>(tensors.size()), tensor_name)) {
    return broken(kSafetensorsLengthBytes + events.places[*twin],
                  fmt::format("tensor {} stands in the header twice", quote_name(tensors[*twin].name)));
  }
  if (!events.metadata) return {};
  const auto key = [&](uint32_t i) -> std::string_view { return (*events.metadata)[i].first; };
  if (const auto twin = first_duplicate(static_cast<uint32_t>(events.metadata->size()), key)) {
    return broken(kSafetensorsLengthBytes + events.metadata_places[*twin],
                  fmt::format("__metadata__: the key {} stands there twice", quote_name(key(*twin))));
  }
  return {};
}

// The tensors are sorted. Each is as long as its kind says and begins where the one before it ends; the last ends with the file.
Status check_ranges(const SafetensorsHeader& header, const std::vector<uint32_t>& places) {
  const uint64_t data_bytes = header.file_bytes - header.data_begin_bytes;
  uint64_t covered = 0;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const SafetensorsTensor& tensor = header.tensors[i];
    const auto bad = [&](std::string_view what) {
      return broken(kSafetensorsLengthBytes + places[i], fmt::format("tensor {}: {}", quote_name(tensor.name), what));
    };
    const uint64_t begin = tensor.begin_bytes, end = tensor.end_bytes;
    const auto bytes = safetensors_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return bad(safetensors_kind(tensor.dtype, tensor.shape) + " " + std::string(bytes.error()));
    if (end < begin) return bad(fmt::format("its data_offsets [{}, {}] end before they begin", begin, end));
    if (end - begin != *bytes) {
      return bad(fmt::format("{} has {} bytes, its data_offsets [{}, {}] have {}",
                             safetensors_kind(tensor.dtype, tensor.shape), *bytes, begin, end, end - begin));
    }
    if (begin < covered) {
      return bad(fmt::format("its data_offsets [{}, {}] overlap those of tensor {}, which end at {}", begin, end,
                             quote_name(header.tensors[i - 1].name), covered));
    }
    if (begin > covered)
      return bad(fmt::format("no tensor has the {} bytes before its first, {}", begin - covered, begin));
    if (end > data_bytes) {
      return bad(
          fmt::format("its data_offsets [{}, {}] pass the end of the data, which are {} bytes: the file was cut off",
                      begin, end, data_bytes));
    }
    covered = end;
  }
  if (covered == data_bytes) return {};
  return broken(header.data_begin_bytes + covered,
                fmt::format("{} bytes at the end of the file belong to no tensor", data_bytes - covered));
}

Result<SafetensorsHeader> parse(std::string_view text, uint64_t file_bytes) {
  if (text.size() > kSafetensorsHeaderMaxBytes || file_bytes < kSafetensorsLengthBytes + text.size()) {
    return broken(0, fmt::format("a header of {} bytes in a file of {}", text.size(), file_bytes));
  }
  if (text.empty() || text.front() != '{') return broken(kSafetensorsLengthBytes, "the header does not begin with '{'");
  if (const size_t valid = valid_utf8_bytes(text); valid != text.size())
    return broken(kSafetensorsLengthBytes + valid, "the header is not UTF-8");
  // JSON has no NUL outside of an escape; the parser would take one for the end.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return broken(kSafetensorsLengthBytes + nul, "the header has a NUL byte");

  const char* cursor = text.data();
  const char* end = text.data() + text.size();
  Events events(text, &cursor);
  if (!nlohmann::json::sax_parse(CountingIterator(&cursor), CountingIterator(&end), &events))
    return std::unexpected(events.fault());
  if (auto status = check_names(events); !status) return std::unexpected(std::move(status.error()));

  sort_by_range(events.tensors, events.places);
  SafetensorsHeader header = {.tensors = std::move(events.tensors),
                              .metadata = std::move(events.metadata),
                              .data_begin_bytes = kSafetensorsLengthBytes + text.size(),
                              .file_bytes = file_bytes};
  if (auto status = check_ranges(header, events.places); !status) return std::unexpected(std::move(status.error()));
  return header;
}

}  // namespace

Result<uint64_t> safetensors_header_bytes(std::span<const std::byte> first, uint64_t file_bytes) noexcept {
  if (file_bytes < kSafetensorsLengthBytes || first.size() < kSafetensorsLengthBytes)
    return broken(0, fmt::format("a file of {} bytes has no header", file_bytes));
  const auto bytes = base::load_little<uint64_t>(first, 0);
  if (bytes > kSafetensorsHeaderMaxBytes)
    return broken(0, fmt::format("a header of {} bytes; {} are the limit", bytes, kSafetensorsHeaderMaxBytes));
  if (bytes > file_bytes - kSafetensorsLengthBytes)
    return broken(0, fmt::format("a header of {} bytes in a file of {}", bytes, file_bytes));
  return bytes;
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> json, uint64_t file_bytes) noexcept {
  const std::string_view text(reinterpret_cast<const char*>(json.data()), json.size());
  try {
    return parse(text, file_bytes);
  } catch (const std::bad_alloc&) {
    return no_memory(kOperation);
  }
}

}  // namespace headrace::format
