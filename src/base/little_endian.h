// SPDX-License-Identifier: Apache-2.0
// Unsigned integers of files: least significant byte first, at any address.
// Any thread; pure functions.
// Owns nothing.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>

namespace headrace::base {

// The caller has checked that `at + sizeof(T)` bytes are there.
template <std::unsigned_integral T>
[[nodiscard]] constexpr T load_little(std::span<const std::byte> bytes, size_t at) noexcept {
  T value = 0;
  for (size_t i = sizeof(T); i-- > 0;)
    value = static_cast<T>(static_cast<uint64_t>(value) << 8 | static_cast<uint64_t>(bytes[at + i]));
  return value;
}

template <std::unsigned_integral T>
void append_little(std::string& text, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    text.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
}

}  // namespace headrace::base
