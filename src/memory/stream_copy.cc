// SPDX-License-Identifier: Apache-2.0
// See the header. x86-64: SSE2 stores past the cache (Intel SDM, volume 1, "Cacheability Control").
// Any thread.
// Owns nothing.
#include "memory/stream_copy.h"

#include <algorithm>
#include <cstring>

// ThreadSanitizer does not see these stores, and so would not see races with them.
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
#define HEADRACE_STREAMING_STORES 1
#include <emmintrin.h>
#endif

namespace headrace::memory {

#ifdef HEADRACE_STREAMING_STORES

void stream_copy(std::byte* target, const std::byte* source, uint64_t bytes) noexcept {
  constexpr uint64_t kLineBytes = 64;
  const uint64_t to_line = -reinterpret_cast<uintptr_t>(target) % kLineBytes;
  const uint64_t head = std::min(bytes, to_line);
  std::memcpy(target, source, head);
  target += head;
  source += head;
  bytes -= head;
  for (; bytes >= kLineBytes; bytes -= kLineBytes, target += kLineBytes, source += kLineBytes) {
    const auto* from = reinterpret_cast<const __m128i*>(source);
    auto* to = reinterpret_cast<__m128i*>(target);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence();  // such stores are not ordered by anything less
  std::memcpy(target, source, bytes);
}

#else

void stream_copy(std::byte* target, const std::byte* source, uint64_t bytes) noexcept {
  std::memcpy(target, source, bytes);
}

#endif

}  // namespace headrace::memory
