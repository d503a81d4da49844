// SPDX-License-Identifier: Apache-2.0
// Eight bytes at a time while all are ASCII, character by character otherwise.
// Any thread.
// Owns nothing.
#include "format/utf8.h"

#include <cstring>

namespace headrace::format {
namespace {

struct Lead {
  uint32_t length = 0;  // of the character; 0: no character starts like this
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xbf;
};

Lead lead(uint8_t first, Surrogates surrogates) noexcept {
  if (first < 0xc2) return {};
  if (first < 0xe0) return {.length = 2};
  if (first == 0xe0) return {.length = 3, .second_min = 0xa0};
  if (first == 0xed && surrogates == Surrogates::refuse) return {.length = 3, .second_max = 0x9f};
  if (first < 0xf0) return {.length = 3};
  if (first == 0xf0) return {.length = 4, .second_min = 0x90};
  if (first < 0xf4) return {.length = 4};
  if (first == 0xf4) return {.length = 4, .second_max = 0x8f};
  return {};
}

}  // namespace

size_t valid_utf8_bytes(std::span<const std::byte> text, Surrogates surrogates) noexcept {
  constexpr uint64_t kHighBits = 0x8080'8080'8080'8080;
  size_t position = 0;
  while (position < text.size()) {
    if (text.size() - position >= sizeof(uint64_t)) {
      uint64_t eight = 0;
      std::memcpy(&eight, text.data() + position, sizeof(eight));
      if ((eight & kHighBits) == 0) {
        position += sizeof(eight);
        continue;
      }
    }
    const auto first = static_cast<uint8_t>(text[position]);
    if (first < 0x80) {
      ++position;
      continue;
    }
    const Lead character = lead(first, surrogates);
    if (character.length == 0 || text.size() - position < character.length) return position;
    const auto second = static_cast<uint8_t>(text[position + 1]);
    if (second < character.second_min || second > character.second_max) return position;
    for (uint32_t i = 2; i < character.length; ++i)
      if ((static_cast<uint8_t>(text[position + i]) & 0xc0) != 0x80) return position;
    position += character.length;
  }
  return position;
}

}  // namespace headrace::format
