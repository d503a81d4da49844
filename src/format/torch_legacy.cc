// SPDX-License-Identifier: Apache-2.0
// The legacy container: fixed pickles in front, the list of keys, counts between the storages.
// Any thread: pure functions.
// Owns what it returns.
#include "format/torch_legacy.h"

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>

#include "base/little_endian.h"
#include "format/duplicates.h"
#include "format/format_error.h"
#include "format/utf8.h"

namespace headrace::format {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kReading = "read torch legacy file";
constexpr std::string_view kWriting = "write torch legacy file";
constexpr uint64_t kFileBytesMax = std::numeric_limits<int64_t>::max();

// Pickles of protocol 2: LONG1 of the magic number 0x1950a86a20f9469cfc6c, BININT2 of 1001, and a dict.
constexpr std::string_view kMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."sv;
constexpr std::string_view kVersion = "\x80\x02M\xe9\x03."sv;
constexpr std::string_view kSystem =
    "\x80\x02}q\0(X\x10\0\0\0protocol_versionq\x01M\xe9\x03X\x0d\0\0\0little_endianq\x02\x88"
    "X\x0a\0\0\0type_sizesq\x03}q\x04(X\x05\0\0\0shortq\x05K\x02X\x03\0\0\0intq\x06K\x04X\x04\0\0\0longq\x07K\x04uu."sv;
static_assert(kMagic.size() == 15 && kVersion.size() == 6 && kSystem.size() == 116);

// The same two numbers in the other protocols. 0 writes text, and so does 1 for the long one.
constexpr std::string_view kMagicText = "L119547037146038801333356L\n."sv;
constexpr std::string_view kVersionText = "I1001\n."sv;
constexpr std::string_view kMagicBinary = kMagic.substr(2);  // behind the protocol and, from 4 on, a frame
constexpr std::string_view kVersionBinary = kVersion.substr(2);

// How long a pickle is whose last bytes are `body`, with a PROTO and a FRAME opcode in front where there are any; 0: it is
// another pickle.
uint64_t framed_bytes(std::string_view text, std::string_view body) {
  constexpr size_t kProtoBytes = 2, kFrameBytes = 9;
  size_t at = 0;
  if (text.size() >= kProtoBytes && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5) {
    at = kProtoBytes;
    if (text[1] >= 4 && text.size() >= at + kFrameBytes && text[at] == '\x95') at += kFrameBytes;
  }
  return text.substr(at).starts_with(body) ? at + body.size() : 0;
}

uint64_t magic_bytes(std::string_view text) {
  return text.starts_with(kMagicText) ? kMagicText.size()
         : text.starts_with('\x80')   ? framed_bytes(text, kMagicBinary)
                                      : 0;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<uint64_t> lead_bytes(std::span<const std::byte> first, const PickleLength& pickle_length) {
  const std::string_view text = text_of(first);
  const uint64_t magic = magic_bytes(text);
  if (magic == 0) return corrupt(kReading, 0, "the file does not begin with the pickled magic number of torch");
  const std::string_view behind = text.substr(magic);
  const uint64_t version =
      behind.starts_with(kVersionText) ? kVersionText.size() : framed_bytes(behind, kVersionBinary);
  if (version == 0) return corrupt(kReading, magic, "the file's version is not 1001");
  const uint64_t system_begin = magic + version;
  if (text.substr(system_begin).starts_with(kSystem)) return system_begin + kSystem.size();
  if (!pickle_length) return corrupt(kReading, system_begin, "the facts of the system are not those that torch writes");
  auto system = pickle_length(first.subspan(system_begin));
  if (!system) return system;
  if (*system == 0 || *system > first.size() - system_begin)
    return corrupt(kReading, system_begin, "the pickled facts of the system do not end");
  return system_begin + *system;
}

Result<LegacyStorages> plan_reading(std::span<const LegacyStorageId> ids, uint64_t begin_bytes, uint64_t file_bytes) {
  LegacyStorages result;
  result.storages.reserve(ids.size());
  uint64_t at = begin_bytes;
  if (at > file_bytes) return corrupt(kReading, file_bytes, "the file ends before its list of keys");
  for (const LegacyStorageId& id : ids) {
    const auto bad = [&](std::string_view what) {
      return corrupt(kReading, at, fmt::format("storage {}: {}", quote_name(id.key), what));
    };
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(id.element_bytes, id.element_count, &bytes) || id.element_count > kFileBytesMax)
      return bad(
          fmt::format("{} elements of {} bytes are more than a file can have", id.element_count, id.element_bytes));
    if (file_bytes - at < kLegacyCountBytes) return bad("the file ends before its count");
    if (file_bytes - at - kLegacyCountBytes < bytes) {
      return bad(fmt::format("of its {} bytes the file has {}", bytes, file_bytes - at - kLegacyCountBytes));
    }
    result.storages.push_back({.count_offset_bytes = at,
                               .data_offset_bytes = at + kLegacyCountBytes,
                               .data_bytes = bytes,
                               .element_count = id.element_count});
    at += kLegacyCountBytes + bytes;
  }
  result.end_bytes = at;
  return result;
}

// ---- writing ----

std::array<std::byte, kLegacyCountBytes> little_endian(uint64_t value) {
  std::array<std::byte, kLegacyCountBytes> bytes;
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(value >> 8 * i & 0xFF);
  return bytes;
}

void append_memo(std::string& pickle, uint32_t index) {
  if (index < 256) {
    pickle += 'q';  // BINPUT
    base::append_little(pickle, static_cast<uint8_t>(index));
  } else {
    pickle += 'r';  // LONG_BINPUT
    base::append_little(pickle, index);
  }
}

// A list of strings as Python's pickler writes it: in batches of 1,000, but a single one by itself.
std::string pickled_keys(std::span<const LegacyEntry> entries, std::span<const uint32_t> order) {
  constexpr size_t kBatch = 1000;
  std::string pickle = "\x80\x02]";
  append_memo(pickle, 0);
  for (size_t i = 0; i < order.size(); ++i) {
    if (order.size() > 1 && i % kBatch == 0) pickle += '(';
    const std::string_view key = entries[order[i]].key;
    pickle += 'X';
    base::append_little(pickle, static_cast<uint32_t>(key.size()));
    pickle += key;
    append_memo(pickle, static_cast<uint32_t>(i + 1));
    if (order.size() > 1 && (i % kBatch == kBatch - 1 || i == order.size() - 1)) pickle += 'e';
  }
  if (order.size() == 1) pickle += 'a';
  pickle += '.';
  return pickle;
}

Status check_entries(std::span<const LegacyEntry> entries) {
  if (entries.size() > std::numeric_limits<uint32_t>::max() - 1)
    return refused(kWriting, fmt::format("{} storages are too many for one file", entries.size()));
  for (const LegacyEntry& entry : entries) {
    const auto bad = [&](std::string_view what) {
      return refused(kWriting, fmt::format("storage {}: {}", quote_name(entry.key), what));
    };
    if (valid_utf8_bytes(entry.key) != entry.key.size()) return refused(kWriting, "a storage's key is not UTF-8");
    if (entry.key.size() > std::numeric_limits<uint32_t>::max()) return bad("its key is longer than a pickle can have");
    if (entry.element_count == 0 ? entry.bytes != 0 : entry.bytes % entry.element_count != 0)
      return bad(fmt::format("{} bytes are not {} elements", entry.bytes, entry.element_count));
  }
  const auto key = [&](uint32_t i) { return entries[i].key; };
  if (const auto twin = first_duplicate(static_cast<uint32_t>(entries.size()), key))
    return refused(kWriting, fmt::format("two storages have the key {}", quote_name(key(*twin))));
  return {};
}

Result<LegacyPlan> plan_writing(uint64_t object_pickle_bytes, std::span<const LegacyEntry> entries) {
  if (auto status = check_entries(entries); !status) return std::unexpected(std::move(status.error()));
  LegacyPlan plan;
  for (const std::string_view part : {kMagic, kVersion, kSystem})
    plan.lead += part;
  plan.order.resize(entries.size());
  std::iota(plan.order.begin(), plan.order.end(), 0U);
  std::ranges::sort(plan.order, [&](uint32_t a, uint32_t b) { return entries[a].key < entries[b].key; });
  plan.keys = pickled_keys(entries, plan.order);

  uint64_t at = plan.lead.size();
  const auto advance = [&](uint64_t bytes) {
    if (bytes > kFileBytesMax - at) return false;
    at += bytes;
    return true;
  };
  const auto too_long = [] { return refused(kWriting, "no file is long enough for these storages"); };
  plan.object_offset_bytes = at;
  if (!advance(object_pickle_bytes)) return too_long();
  plan.keys_offset_bytes = at;
  if (!advance(plan.keys.size())) return too_long();
  plan.places.resize(entries.size());
  for (const uint32_t i : plan.order) {
    LegacyPlan::Place& place = plan.places[i];
    place.count = little_endian(entries[i].element_count);
    place.count_offset_bytes = at;
    if (!advance(kLegacyCountBytes)) return too_long();
    place.data_offset_bytes = at;
    if (!advance(entries[i].bytes)) return too_long();
  }
  plan.file_bytes = at;
  return plan;
}

}  // namespace

bool is_torch_legacy(std::span<const std::byte> first) noexcept { return magic_bytes(text_of(first)) != 0; }

Result<uint64_t> torch_legacy_lead_bytes(std::span<const std::byte> first, const PickleLength& pickle_length) noexcept {
  try {
    return lead_bytes(first, pickle_length);
  } catch (const std::bad_alloc&) {
    return no_memory(kReading);
  }
}

Result<LegacyStorages> plan_legacy_storages(std::span<const LegacyStorageId> ids, uint64_t begin_bytes,
                                            uint64_t file_bytes) noexcept {
  try {
    return plan_reading(ids, begin_bytes, file_bytes);
  } catch (const std::bad_alloc&) {
    return no_memory(kReading);
  }
}

Status check_legacy_count(const LegacyStorage& storage, std::string_view key,
                          std::span<const std::byte, kLegacyCountBytes> count) noexcept {
  if (std::ranges::equal(count, little_endian(storage.element_count))) return {};
  const auto value = base::load_little<uint64_t>(count, 0);
  return corrupt(kReading, storage.count_offset_bytes,
                 fmt::format("storage {}: {} elements stand before its data, the pickle says {}", quote_name(key),
                             static_cast<int64_t>(value), storage.element_count));
}

Result<LegacyPlan> plan_torch_legacy(uint64_t object_pickle_bytes, std::span<const LegacyEntry> entries) noexcept {
  try {
    return plan_writing(object_pickle_bytes, entries);
  } catch (const std::bad_alloc&) {
    return no_memory(kWriting);
  }
}

}  // namespace headrace::format
