// SPDX-License-Identifier: Apache-2.0
// Is this UTF-8? Unicode 15, table 3-7; on request with lone surrogates, as Python's "surrogatepass" reads and writes them.
// Any thread: a pure function.
// Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace headrace::format {

enum class Surrogates : uint8_t { refuse, accept };

// The number of bytes from the start that are whole, valid characters: text.size() if all are.
[[nodiscard]] size_t valid_utf8_bytes(std::span<const std::byte> text, Surrogates surrogates) noexcept;

[[nodiscard]] inline size_t valid_utf8_bytes(std::string_view text) noexcept {
  return valid_utf8_bytes(std::as_bytes(std::span(text)), Surrogates::refuse);
}

}  // namespace headrace::format
