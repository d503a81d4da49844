// SPDX-License-Identifier: Apache-2.0
// Is this UTF-8? Unicode 15, table 3-7; on request with lone surrogates, as Python's "surrogatepass" reads and writes them.
// Any thread: a pure function.
// Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::format {

enum class Surrogates : uint8_t { refuse, accept };

// The number of bytes from the start that are whole, valid characters: text.size() if all are.
size_t valid_utf8_bytes(std::span<const std::byte> text, Surrogates surrogates) noexcept;

}  // namespace headrace::format
