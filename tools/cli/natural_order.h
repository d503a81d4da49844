// SPDX-License-Identifier: Apache-2.0
// The order in which people count: layers.2 before layers.10.
// Any thread.
// Owns nothing.
#pragma once

#include <algorithm>
#include <compare>
#include <string_view>

namespace headrace::cli {

// Compares names piece by piece: a run of digits is a number, of any length, and any other byte is itself. Numbers that
// differ in leading zeros only come the shorter first. Names that share their first words stay together.
inline std::strong_ordering natural_order(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto take_digits = [&](std::string_view& text) {
    const auto end = std::ranges::find_if_not(text, is_digit);
    const std::string_view run = text.substr(0, static_cast<size_t>(end - text.begin()));
    text.remove_prefix(run.size());
    return run;
  };
  const auto without_zeros = [](std::string_view run) {
    return run.substr(std::min(run.find_first_not_of('0'), run.size()));
  };
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view run_a = take_digits(a), run_b = take_digits(b);
      const std::string_view number_a = without_zeros(run_a), number_b = without_zeros(run_b);
      if (const auto order = number_a.size() <=> number_b.size(); order != 0) return order;
      if (const auto order = number_a <=> number_b; order != 0) return order;
      if (const auto order = run_a.size() <=> run_b.size(); order != 0) return order;
    } else {
      if (const auto order = a.substr(0, 1) <=> b.substr(0, 1); order != 0) return order;
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() <=> b.size();
}

// For containers and algorithms.
struct NaturalLess {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const { return natural_order(a, b) < 0; }
};

}  // namespace headrace::cli
