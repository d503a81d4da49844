// SPDX-License-Identifier: Apache-2.0
// Is a text UTF-8 as Unicode defines it: shortest forms, no surrogates, nothing above U+10FFFF (RFC 3629)?
// Any thread: a pure function.
// Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace headrace::format {

// How many bytes at the front are whole, valid characters; text.size() when all of them are.
[[nodiscard]] inline size_t valid_utf8_bytes(std::string_view text) noexcept {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {  // eight characters of ASCII at a time
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
    const unsigned first = byte(0);
    size_t length = 1;
    if (first >= 0x80) {
      if (first < 0xC2 || first > 0xF4) return at;
      length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
      unsigned second_min = 0x80, second_max = 0xBF;
      if (first == 0xE0) second_min = 0xA0;  // below, a shorter form exists
      if (first == 0xED) second_max = 0x9F;  // above are surrogates
      if (first == 0xF0) second_min = 0x90;
      if (first == 0xF4) second_max = 0x8F;  // the last character is U+10FFFF
      if (text.size() - at < length || byte(1) < second_min || byte(1) > second_max) return at;
      for (size_t i = 2; i < length; ++i)
        if ((byte(i) & 0xC0U) != 0x80U) return at;
    }
    at += length;
  }
  return at;
}

}  // namespace headrace::format
