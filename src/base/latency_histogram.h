// SPDX-License-Identifier: Apache-2.0
// Counts durations in buckets 1/16 of a power of two wide, so that any percentile is known within 7 %.
// Any thread records and reads; a reader sees each count late but whole (relaxed atomics).
// Owns its buckets; fixed size, no allocation.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace headrace::base {

class LatencyHistogram {
 public:
  static constexpr uint32_t kSubBuckets = 16;
  static constexpr uint32_t kBuckets = 48 * kSubBuckets;  // up to 2^51 ns, 26 days
  using Counts = std::array<uint64_t, kBuckets>;

  void record(uint64_t ns) noexcept { counts_[bucket_of(ns)].fetch_add(1, std::memory_order_relaxed); }

  void add_to(Counts& sum) const noexcept {
    for (uint32_t i = 0; i < kBuckets; ++i)
      sum[i] += counts_[i].load(std::memory_order_relaxed);
  }

  // The upper edge of the bucket that holds the given fraction (0..1) of all counts; 0 when there are none.
  static uint64_t percentile(const Counts& counts, uint64_t per_mille) noexcept {
    uint64_t total = 0;
    for (uint64_t count : counts)
      total += count;
    if (total == 0) return 0;
    const uint64_t rank = (total * per_mille + 999) / 1000;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < kBuckets; ++i) {
      seen += counts[i];
      if (seen >= rank && counts[i] != 0) return upper_edge(i);
    }
    return upper_edge(kBuckets - 1);
  }

  static uint32_t bucket_of(uint64_t ns) noexcept {
    if (ns < kSubBuckets) return static_cast<uint32_t>(ns);
    const auto exponent = static_cast<uint32_t>(std::bit_width(ns)) - 5;  // ns >> exponent lies in 16..31
    const uint32_t bucket = (exponent + 1) * kSubBuckets + static_cast<uint32_t>(ns >> exponent) - kSubBuckets;
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }

  static uint64_t upper_edge(uint32_t bucket) noexcept {
    if (bucket < kSubBuckets) return bucket;
    const uint32_t exponent = bucket / kSubBuckets - 1;
    const uint64_t mantissa = kSubBuckets + bucket % kSubBuckets;
    return ((mantissa + 1) << exponent) - 1;
  }

 private:
  std::array<std::atomic<uint64_t>, kBuckets> counts_ = {};
};

}  // namespace headrace::base
