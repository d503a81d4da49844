// SPDX-License-Identifier: Apache-2.0
// CRC-32 as zip and zlib define it (ISO 3309: reflected polynomial 0xEDB88320, all ones before and after), and its algebra.
// Any thread. The first call of the process looks for ISA-L, which is several times faster; libdeflate is always there.
// Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace headrace::base {

// Of `bytes` after what `before` is the sum of; 0 is the sum of nothing.
[[nodiscard]] uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0) noexcept;

// What the sum of some bytes contributes to the sum of a text in which `bytes_behind` more follow them: the sum of a text is the
// exclusive or of the contributions of its pieces, in any order.
[[nodiscard]] uint32_t crc32_contribution(uint32_t sum, uint64_t bytes_behind) noexcept;

// "isa-l" or "libdeflate": what crc32() uses here.
[[nodiscard]] std::string_view crc32_implementation() noexcept;

}  // namespace headrace::base
