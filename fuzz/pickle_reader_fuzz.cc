// SPDX-License-Identifier: Apache-2.0
// Any bytes are read as pickles in a row, in both modes; what is accepted must obey the oracle, what is refused must say where.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/support/pickle_oracle.h"

namespace {

[[noreturn]] void broken(const std::string& rule) {
  std::fprintf(stderr, "%s\n", rule.c_str());
  std::abort();
}

void check_error(const headrace::Error& error, uint64_t base, size_t size) {
  if (error.code != headrace::ErrorCode::corrupt || error.detail.empty()) broken("an error without its reason");
  if (error.offset_bytes < base || error.offset_bytes > base + size) broken("an error outside the input");
  if (error.detail.size() > 1000) broken("a message without bounds");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kBase = uint64_t{1} << 40;
  std::span<const std::byte> rest = std::as_bytes(std::span(data, size));
  while (!rest.empty()) {
    const auto strict = headrace::parse_pickle(rest, {.base_offset_bytes = kBase});
    const auto loose = headrace::parse_pickle(
        rest, {.base_offset_bytes = kBase, .unknown_globals = headrace::UnknownGlobals::collect});
    if (!strict.has_value()) check_error(strict.error(), kBase, rest.size());
    if (!loose.has_value()) {
      check_error(loose.error(), kBase, rest.size());
      if (strict.has_value()) broken("collect refuses what refuse accepts");
      return 0;
    }
    for (const auto* pickle : {&strict, &loose}) {
      if (!pickle->has_value()) continue;
      if (const auto fault = headrace::test::PickleOracle(**pickle, rest).fault()) broken(*fault);
    }
    bool known = true;
    for (const headrace::PickleGlobal& global : loose->globals())
      known = known && global.known();
    if (known != strict.has_value()) broken("the modes differ in more than unknown globals");
    if (known && (strict->node_count() != loose->node_count() || strict->steps().size() != loose->steps().size()))
      broken("the modes give different programs");
    rest = rest.subspan(loose->consumed_bytes());
  }
  return 0;
}
