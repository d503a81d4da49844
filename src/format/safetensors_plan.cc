// SPDX-License-Identifier: Apache-2.0
// Writing a header: the order of the tensors, their offsets, the JSON.
// Any thread: pure functions.
// Owns what it returns.
#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <numeric>

#include <fmt/format.h>

#include "format/duplicates.h"
#include "format/format_error.h"
#include "format/safetensors.h"
#include "format/utf8.h"

namespace headrace::format {
namespace {

constexpr std::string_view kOperation = "write safetensors header";
constexpr uint64_t kAlignBytes = 8;

std::unexpected<Error> refuse(std::string detail) { return refused(kOperation, std::move(detail)); }

// Tensors are written in the order of this list: with the widest elements first, each is aligned to its own.
constexpr std::array kWriteOrder = {
    DType::uint64,          DType::int64,          DType::float64,
    DType::complex64,       DType::float32,        DType::uint32,
    DType::int32,           DType::bfloat16,       DType::float16,
    DType::uint16,          DType::int16,          DType::float8_e5m2fnuz,
    DType::float8_e4m3fnuz, DType::float8_e8m0fnu, DType::float8_e4m3fn,
    DType::float8_e5m2,     DType::int8,           DType::uint8,
    DType::float6_e3m2fn,   DType::float6_e2m3fn,  DType::float4_e2m1fn_x2,
    DType::boolean,
};

constexpr std::array<uint8_t, kDTypeCount> kWriteRank = [] {
  std::array<uint8_t, kDTypeCount> ranks = {};
  ranks.fill(std::numeric_limits<uint8_t>::max());
  for (size_t i = 0; i < kWriteOrder.size(); ++i)
    ranks[static_cast<size_t>(kWriteOrder[i])] = static_cast<uint8_t>(i);
  return ranks;
}();

void append_json_string(std::string& json, std::string_view text) {
  json += '"';
  size_t plain = 0;  // where the run that needs no escape begins
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    json.append(text, plain, i - plain);
    plain = i + 1;
    switch (byte) {
      case '"': json += "\\\""; break;
      case '\\': json += "\\\\"; break;
      case '\b': json += "\\b"; break;
      case '\t': json += "\\t"; break;
      case '\n': json += "\\n"; break;
      case '\f': json += "\\f"; break;
      case '\r': json += "\\r"; break;
      default:
        json += "\\u00";
        json += "0123456789abcdef"[byte >> 4];
        json += "0123456789abcdef"[byte & 0xF];
    }
  }
  json.append(text, plain);
  json += '"';
}

void append_number(std::string& json, uint64_t value) {
  const fmt::format_int digits(value);
  json.append(digits.data(), digits.size());
}

void append_tensor(std::string& json, const SafetensorsEntry& entry, uint64_t begin_bytes) {
  append_json_string(json, entry.name);
  json += R"(:{"dtype":")";
  json += dtype_facts(entry.dtype).safetensors;
  json += R"(","shape":[)";
  for (size_t i = 0; i < entry.shape.size(); ++i) {
    if (i != 0) json += ',';
    append_number(json, entry.shape[i]);
  }
  json += R"(],"data_offsets":[)";
  append_number(json, begin_bytes);
  json += ',';
  append_number(json, begin_bytes + entry.bytes);
  json += "]}";
}

Status check_entry(const SafetensorsEntry& entry) {
  if (valid_utf8_bytes(entry.name) != entry.name.size())
    return refuse("a tensor's name is not UTF-8: " + quote_name(entry.name.substr(0, valid_utf8_bytes(entry.name))) +
                  "...");
  const auto bad = [&](std::string_view what) {
    return refuse(fmt::format("tensor {}: {}", quote_name(entry.name), what));
  };
  if (entry.name == kSafetensorsMetadataKey) return bad("this name is the key of the metadata");
  const DTypeFacts& facts = dtype_facts(entry.dtype);
  if (facts.safetensors.empty()) return bad(fmt::format("safetensors has no element type {}", facts.name));
  const auto bytes = safetensors_bytes(entry.dtype, entry.shape);
  if (!bytes) return bad(safetensors_kind(entry.dtype, entry.shape) + " " + std::string(bytes.error()));
  if (*bytes != entry.bytes) {
    return bad(fmt::format("{} has {} bytes, not {}", safetensors_kind(entry.dtype, entry.shape), *bytes, entry.bytes));
  }
  return {};
}

std::unexpected<Error> too_long(size_t entries) {
  return refuse(
      fmt::format("the names and shapes of {} tensors and the metadata make a header of more than {} bytes, which no "
                  "reader opens: shorten the names or write several files",
                  entries, kSafetensorsHeaderMaxBytes));
}

Status check_arguments(std::span<const SafetensorsEntry> entries, const std::optional<SafetensorsMetadata>& metadata) {
  // Early, before memory is taken in proportion; each tensor and key takes more than a byte, so their indices fit 32 bits.
  const size_t keys = metadata ? metadata->size() : 0;
  size_t bytes = entries.size() + keys;
  for (const SafetensorsEntry& entry : entries)
    bytes += entry.name.size() + entry.shape.size();
  for (size_t i = 0; i < keys; ++i)
    bytes += (*metadata)[i].first.size() + (*metadata)[i].second.size();
  if (bytes > kSafetensorsHeaderMaxBytes) return too_long(entries.size());
  for (const SafetensorsEntry& entry : entries)
    if (auto status = check_entry(entry); !status) return status;
  const auto name = [&](uint32_t i) { return entries[i].name; };
  if (const auto twin = first_duplicate(static_cast<uint32_t>(entries.size()), name))
    return refuse(fmt::format("two tensors have the name {}", quote_name(name(*twin))));
  if (!metadata) return {};
  for (const auto& [key, value] : *metadata) {
    if (valid_utf8_bytes(key) != key.size()) return refuse("a key of the metadata is not UTF-8");
    if (valid_utf8_bytes(value) != value.size())
      return refuse(fmt::format("the metadata under {} are not UTF-8", quote_name(key)));
  }
  const auto key_of = [&](uint32_t i) -> std::string_view { return (*metadata)[i].first; };
  if (const auto twin = first_duplicate(static_cast<uint32_t>(keys), key_of))
    return refuse(fmt::format("two metadata have the key {}", quote_name(key_of(*twin))));
  return {};
}

Result<SafetensorsPlan> plan(std::span<const SafetensorsEntry> entries,
                             const std::optional<SafetensorsMetadata>& metadata) {
  if (auto status = check_arguments(entries, metadata); !status) return std::unexpected(std::move(status.error()));
  SafetensorsPlan result;
  result.order.resize(entries.size());
  std::iota(result.order.begin(), result.order.end(), 0U);
  std::ranges::sort(result.order, [&](uint32_t a, uint32_t b) {
    const uint8_t rank_a = kWriteRank[static_cast<size_t>(entries[a].dtype)];
    const uint8_t rank_b = kWriteRank[static_cast<size_t>(entries[b].dtype)];
    return rank_a != rank_b ? rank_a < rank_b : entries[a].name < entries[b].name;
  });

  std::string& head = result.head;
  head.assign(kSafetensorsLengthBytes, '\0');
  const auto full = [&] { return head.size() - kSafetensorsLengthBytes > kSafetensorsHeaderMaxBytes; };
  head += '{';
  if (metadata) {
    append_json_string(head, kSafetensorsMetadataKey);
    head += ":{";
    for (size_t i = 0; i < metadata->size() && !full(); ++i) {
      if (i != 0) head += ',';
      append_json_string(head, (*metadata)[i].first);
      head += ':';
      append_json_string(head, (*metadata)[i].second);
    }
    head += '}';
  }
  result.offsets_bytes.resize(entries.size());
  uint64_t data_bytes = 0;
  for (const uint32_t i : result.order) {
    if (full()) return too_long(entries.size());
    if (entries[i].bytes > std::numeric_limits<int64_t>::max() - data_bytes)
      return refuse(fmt::format("tensor {}: no file is long enough to hold it", quote_name(entries[i].name)));
    if (head.back() != '{') head += ',';
    append_tensor(head, entries[i], data_bytes);
    result.offsets_bytes[i] = data_bytes;  // of the data section, until its place is known
    data_bytes += entries[i].bytes;
  }
  head += '}';
  head.append((kAlignBytes - head.size() % kAlignBytes) % kAlignBytes, ' ');
  if (full()) return too_long(entries.size());

  const uint64_t json_bytes = head.size() - kSafetensorsLengthBytes;
  for (size_t i = 0; i < kSafetensorsLengthBytes; ++i)
    head[i] = static_cast<char>(json_bytes >> 8 * i & 0xFF);
  for (uint64_t& offset : result.offsets_bytes)
    offset += head.size();
  result.file_bytes = head.size() + data_bytes;
  return result;
}

}  // namespace

std::expected<uint64_t, std::string_view> safetensors_bytes(DType dtype, std::span<const uint64_t> shape) noexcept {
  constexpr std::string_view kOverflow = "has more bits than 64-bit numbers can count";
  uint64_t elements = 1;
  for (const uint64_t extent : shape)  // in this order: [2^63, 4, 0] overflows, as it does in the reference
    if (__builtin_mul_overflow(elements, extent, &elements)) return std::unexpected(kOverflow);
  uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, uint64_t{dtype_facts(dtype).bits}, &bits)) return std::unexpected(kOverflow);
  if (bits % 8 != 0) return std::unexpected(std::string_view("does not fill whole bytes"));
  return bits / 8;
}

std::string safetensors_kind(DType dtype, std::span<const uint64_t> shape) {
  constexpr size_t kShown = 8;
  std::string text = fmt::format("{} of shape [", dtype_facts(dtype).safetensors);
  for (size_t i = 0; i < std::min(shape.size(), kShown); ++i)
    text += fmt::format("{}{}", i != 0 ? ", " : "", shape[i]);
  if (shape.size() > kShown) text += fmt::format(", ... {} dimensions in all", shape.size());
  return text + "]";
}

Result<SafetensorsPlan> plan_safetensors(std::span<const SafetensorsEntry> entries,
                                         const std::optional<SafetensorsMetadata>& metadata) noexcept {
  try {
    return plan(entries, metadata);
  } catch (const std::bad_alloc&) {
    return no_memory(kOperation);
  }
}

}  // namespace headrace::format
