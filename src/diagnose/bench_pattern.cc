// SPDX-License-Identifier: Apache-2.0
// A counter whose bits are mixed: word i of a pattern is a function of the key and of i alone, so any part can be made by itself.
// Any thread.
// Owns nothing.
#include "diagnose/bench_pattern.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace headrace::diagnose {
namespace {

constexpr uint64_t kWordBytes = sizeof(uint64_t);

// Two rounds of multiply and shift: every bit of the counter reaches every bit of the word.
constexpr uint64_t word_at(uint64_t key, uint64_t index) noexcept {
  uint64_t word = (key ^ index) * 0xd6e8feb86659fd93U;
  word ^= word >> 32;
  word = (word + key) * 0xa0761d6478bd642fU;
  return word ^ word >> 29;
}

}  // namespace

void fill_pattern(std::span<std::byte> target, uint64_t key, uint64_t offset_bytes) noexcept {
  uint64_t index = offset_bytes / kWordBytes;
  size_t at = 0;
  for (; at + kWordBytes <= target.size(); at += kWordBytes, ++index) {
    const uint64_t word = word_at(key, index);
    std::memcpy(target.data() + at, &word, kWordBytes);
  }
  if (at == target.size()) return;
  const uint64_t word = word_at(key, index);
  std::memcpy(target.data() + at, &word, target.size() - at);
}

std::optional<uint64_t> find_difference(std::span<const std::byte> bytes, uint64_t key,
                                        uint64_t offset_bytes) noexcept {
  uint64_t index = offset_bytes / kWordBytes;
  for (size_t at = 0; at < bytes.size(); at += kWordBytes, ++index) {
    const size_t length = std::min<size_t>(kWordBytes, bytes.size() - at);
    const uint64_t expected = word_at(key, index);
    if (std::memcmp(bytes.data() + at, &expected, length) == 0) continue;
    const auto* wanted = reinterpret_cast<const std::byte*>(&expected);
    for (size_t i = 0; i < length; ++i) {
      if (bytes[at + i] != wanted[i]) return at + i;
    }
  }
  return std::nullopt;
}

uint64_t random_key() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace headrace::diagnose
