// SPDX-License-Identifier: Apache-2.0
// Any bytes are read as a safetensors file, and once more as a header before a data section as long as the first eight
// bytes say. What is accepted covers the file without gap or overlap, and planned again and parsed it is the same.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "format/safetensors.h"

namespace {

using namespace headrace::format;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

void check_ranges(const SafetensorsHeader& header) {
  uint64_t covered = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    require(tensor.begin_bytes == covered, "ranges follow each other");
    require(tensor.end_bytes >= tensor.begin_bytes, "a range ends behind its begin");
    const auto bytes = safetensors_bytes(tensor.dtype, tensor.shape);
    require(bytes && *bytes == tensor.end_bytes - tensor.begin_bytes, "a range is as long as its shape");
    covered = tensor.end_bytes;
  }
  require(header.data_begin_bytes <= header.file_bytes, "the data begin in the file");
  require(covered == header.file_bytes - header.data_begin_bytes, "the ranges cover the data");
}

SafetensorsPlan plan_of(const SafetensorsHeader& header, bool& possible) {
  std::vector<SafetensorsEntry> entries;
  for (const SafetensorsTensor& tensor : header.tensors) {
    entries.push_back({.name = tensor.name,
                       .dtype = tensor.dtype,
                       .shape = tensor.shape,
                       .bytes = tensor.end_bytes - tensor.begin_bytes});
  }
  auto plan = plan_safetensors(entries, header.metadata);
  possible = plan.has_value();
  require(possible || header.file_bytes > INT64_MAX, "what was parsed can be planned");
  return possible ? std::move(*plan) : SafetensorsPlan();
}

bool same(const SafetensorsHeader& a, const SafetensorsHeader& b) {
  const auto sorted = [](const SafetensorsHeader& header) {
    std::vector<const SafetensorsTensor*> tensors;
    for (const SafetensorsTensor& tensor : header.tensors)
      tensors.push_back(&tensor);
    std::ranges::sort(tensors, {}, &SafetensorsTensor::name);
    return tensors;
  };
  return a.metadata == b.metadata &&
         std::ranges::equal(sorted(a), sorted(b), [](const SafetensorsTensor* x, const SafetensorsTensor* y) {
           return x->name == y->name && x->dtype == y->dtype && x->shape == y->shape;
         });
}

void check(std::span<const std::byte> json, uint64_t file_bytes) {
  const auto header = parse_safetensors(json, file_bytes);
  if (!header) {
    require(header.error().code == headrace::ErrorCode::corrupt, "a refusal is called corrupt");
    require(!header.error().detail.empty() && header.error().detail.size() < 1000, "a refusal has a short reason");
    require(header.error().offset_bytes <= file_bytes, "a fault lies in the file");
    return;
  }
  check_ranges(*header);
  bool possible = false;
  const SafetensorsPlan plan = plan_of(*header, possible);
  if (!possible) return;
  const auto again = parse_safetensors(std::as_bytes(std::span(plan.head)).subspan(8), plan.file_bytes);
  require(again.has_value(), "what was planned parses");
  require(same(*header, *again), "what was planned parses to the same");
  require(plan_of(*again, possible).head == plan.head && possible, "planned twice it has the same head");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  const auto length = safetensors_header_bytes(file.first(std::min<size_t>(size, 8)), size);
  if (length) {
    require(*length <= size - 8, "a header lies in its file");
    check(file.subspan(8, *length), size);
  }
  if (size < 8) return 0;
  uint64_t data_bytes = 0;
  for (size_t i = 0; i < 8; ++i)
    data_bytes |= std::to_integer<uint64_t>(file[i]) << 8 * i;
  if (data_bytes <= UINT64_MAX - size) check(file.subspan(8), size + data_bytes);
  return 0;
}
