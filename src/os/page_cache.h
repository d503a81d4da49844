// SPDX-License-Identifier: Apache-2.0
// How much of a file range sits in the page cache: cachestat (Linux 6.5), else a bounded sample.
// Any thread.
// Owns nothing.
#pragma once

#include <cstdint>
#include <optional>

namespace headrace::os {

// Bytes of [offset, offset + length) in the page cache, dirty ones included; an estimate from 16 samples where the
// kernel cannot count. None when it cannot be told.
[[nodiscard]] std::optional<uint64_t> resident_bytes(int descriptor, uint64_t offset_bytes,
                                                     uint64_t length_bytes) noexcept;

}  // namespace headrace::os
