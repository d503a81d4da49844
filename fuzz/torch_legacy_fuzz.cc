// SPDX-License-Identifier: Apache-2.0
// Any bytes as torch's legacy container: the pickles in front, then storages that follow each other inside the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <headrace/pickle.h>

#include "format/torch_legacy.h"

using namespace headrace;
using namespace headrace::format;

namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

void expect_reason(const Error& error) {
  expect(error.code == ErrorCode::corrupt && !error.detail.empty() && error.detail.size() < 1000);
}

Result<uint64_t> pickle_length(std::span<const std::byte> rest) {
  const Result<Pickle> pickle = parse_pickle(rest, {.unknown_globals = UnknownGlobals::collect});
  if (!pickle) return std::unexpected(pickle.error());
  expect(pickle->consumed_bytes() <= rest.size());
  return pickle->consumed_bytes();
}

// Storages of any sizes, taken from the input, where the keys of a file would end.
void plan(std::span<const std::byte> file, uint64_t begin) {
  std::vector<LegacyStorageId> ids;
  std::span<const std::byte> rest = file.subspan(begin);
  for (; rest.size() >= 10 && ids.size() < 20; rest = rest.subspan(10)) {
    uint64_t count = 0;
    for (size_t i = 0; i < 8; ++i)
      count |= std::to_integer<uint64_t>(rest[i]) << (8 * i);
    const unsigned shift = std::to_integer<unsigned>(rest[8]) % 64;
    ids.push_back({.key = "key", .element_bytes = std::to_integer<uint64_t>(rest[9]), .element_count = count >> shift});
  }
  const Result<LegacyStorages> storages = plan_legacy_storages(ids, begin, file.size());
  if (!storages) return expect_reason(storages.error());
  expect(storages->storages.size() == ids.size());
  uint64_t position = begin;
  for (size_t i = 0; i < ids.size(); ++i) {
    const LegacyStorage& one = storages->storages[i];
    expect(one.count_offset_bytes == position && one.data_offset_bytes == position + kLegacyCountBytes);
    expect(one.element_count == ids[i].element_count);
    expect(one.data_bytes <= file.size() - one.data_offset_bytes);
    position = one.data_offset_bytes + one.data_bytes;
    const auto count = file.subspan(one.count_offset_bytes).first<kLegacyCountBytes>();
    if (const Status same = check_legacy_count(one, "key", count); !same) expect_reason(same.error());
  }
  expect(storages->end_bytes == position);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  const bool known = is_torch_legacy(file.first(std::min<size_t>(size, kLegacyMagicBytesMax)));
  const Result<uint64_t> lead = torch_legacy_lead_bytes(file, pickle_length);
  const Result<uint64_t> known_facts_only = torch_legacy_lead_bytes(file);
  expect(!known_facts_only || (lead && *lead == *known_facts_only));
  if (!lead) {
    expect_reason(lead.error());
  } else {
    expect(known && *lead <= size);
  }
  plan(file, lead ? *lead : 0);
  return 0;
}
