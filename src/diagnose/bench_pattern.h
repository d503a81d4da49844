// SPDX-License-Identifier: Apache-2.0
// Bytes that depend on a key and on their place: they cannot be compressed, and a byte in the wrong place shows.
// Any thread; pure functions.
// Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace headrace::diagnose {

// The bytes from `offset_bytes`, a multiple of 8, on of the endless pattern of `key`.
void fill_pattern(std::span<std::byte> target, uint64_t key, uint64_t offset_bytes) noexcept;

// The index of the first byte that differs from them.
[[nodiscard]] std::optional<uint64_t> find_difference(std::span<const std::byte> bytes, uint64_t key,
                                                      uint64_t offset_bytes) noexcept;

// A key that no other process has.
[[nodiscard]] uint64_t random_key();

}  // namespace headrace::diagnose
