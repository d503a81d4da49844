// SPDX-License-Identifier: Apache-2.0
// A copy of more than the processor's caches hold: what is written is neither fetched first nor kept.
// Any thread. The regions must not overlap.
// Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::memory {

// Ordinary stores would fetch each line of `target` from memory only to overwrite it, and evict what is of use. Once
// this returns, the bytes are visible to other threads and to devices as after memcpy. Where the processor has no such
// stores it is memcpy.
void stream_copy(std::byte* target, const std::byte* source, uint64_t bytes) noexcept;

}  // namespace headrace::memory
