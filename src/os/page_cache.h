// SPDX-License-Identifier: Apache-2.0
// How much of a file range sits in the page cache (cachestat, Linux 6.5, else a bounded sample), and getting rid of it.
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

// Writes what is dirty to the device and drops what the page cache has of the file. Advice: what others use or map stays.
// Zero or a negative errno.
int drop_from_cache(int descriptor) noexcept;

}  // namespace headrace::os
