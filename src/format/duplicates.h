// SPDX-License-Identifier: Apache-2.0
// Which of many names stands twice?
// Any thread: a pure function.
// Owns nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::format {

// The lowest index whose name an earlier index has, too. `name_of(i)` gives a string_view for each i below `count`.
// Sorts hashes, so no choice of names makes it slower than sorting the names themselves.
template <class NameOf>
[[nodiscard]] std::optional<uint32_t> first_duplicate(uint32_t count, NameOf name_of) {
  std::vector<std::pair<size_t, uint32_t>> hashes;
  hashes.reserve(count);
  for (uint32_t i = 0; i < count; ++i)
    hashes.emplace_back(std::hash<std::string_view>()(name_of(i)), i);
  std::ranges::sort(hashes);
  std::optional<uint32_t> found;
  for (size_t begin = 0; begin < hashes.size();) {
    size_t end = begin + 1;
    while (end < hashes.size() && hashes[end].first == hashes[begin].first)
      ++end;
    if (end - begin > 1) {
      const auto before = [&](const auto& a, const auto& b) {
        const int order = name_of(a.second).compare(name_of(b.second));
        return order != 0 ? order < 0 : a.second < b.second;
      };
      std::sort(hashes.data() + begin, hashes.data() + end, before);
      for (size_t i = begin + 1; i < end; ++i) {
        const uint32_t index = hashes[i].second;
        if (name_of(index) == name_of(hashes[i - 1].second) && (!found || index < *found)) found = index;
      }
    }
    begin = end;
  }
  return found;
}

}  // namespace headrace::format
