// SPDX-License-Identifier: Apache-2.0
#include "units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace headrace::cli {
namespace {

constexpr std::string_view kPowers = "KMGT";

// The factor that a suffix stands for; 0 if it is none.
uint64_t factor_of(std::string_view suffix) {
  if (suffix.empty() || suffix == "B" || suffix == "b") return 1;
  const char upper = static_cast<char>(suffix[0] >= 'a' && suffix[0] <= 'z' ? suffix[0] - 'a' + 'A' : suffix[0]);
  const size_t power = kPowers.find(upper);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = suffix.substr(1);
  const uint64_t base = rest == "B" ? 1000 : 1024;
  if (!rest.empty() && rest != "B" && rest != "iB" && rest != "ib" && rest != "i") return 0;
  uint64_t factor = 1;
  for (size_t i = 0; i <= power; ++i)
    factor *= base;
  return factor;
}

}  // namespace

std::expected<uint64_t, std::string> parse_bytes(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, digits);
  std::string_view suffix = text.substr(digits);
  while (suffix.starts_with(' '))
    suffix.remove_prefix(1);
  const uint64_t factor = factor_of(suffix);
  const auto wrong = [&] {
    return std::unexpected(
        fmt::format("'{}' is no size: write bytes, or a number with K, M, G, T (powers of 1024) or "
                    "KB, MB, GB, TB (powers of 1000), such as 400M",
                    text));
  };
  if (number.empty() || factor == 0) return wrong();
  if (uint64_t whole = 0; number.find('.') == std::string_view::npos) {
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), whole);
    if (error == std::errc::result_out_of_range ||
        (error == std::errc() && whole > std::numeric_limits<int64_t>::max() / factor))
      return std::unexpected(fmt::format("'{}' is more than a file can have", text));
    if (error != std::errc() || end != number.data() + number.size()) return wrong();
    return whole * factor;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size()) return wrong();
  const double bytes = std::round(value * static_cast<double>(factor));
  if (bytes >= 9.2e18) return std::unexpected(fmt::format("'{}' is more than a file can have", text));
  return static_cast<uint64_t>(bytes);
}

std::string show_bytes(uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  static constexpr std::array<std::string_view, 6> kNames = {"KB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes) / 1000;
  size_t name = 0;
  while (value >= 999.5 && name + 1 < kNames.size()) {
    value /= 1000;
    ++name;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kNames[name]);
}

std::string show_binary_bytes(uint64_t bytes) {
  static constexpr std::array<std::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t name = 0;
  while (bytes != 0 && bytes % 1024 == 0 && name + 1 < kNames.size()) {
    bytes /= 1024;
    ++name;
  }
  return fmt::format("{} {}", bytes, kNames[name]);
}

std::string show_rate(uint64_t bytes, double seconds) {
  if (seconds <= 0) return "- GB/s";
  return fmt::format("{:.2f} GB/s", static_cast<double>(bytes) / 1e9 / seconds);
}

std::string show_seconds(double seconds) {
  if (seconds < 60) return fmt::format("{:.2f} s", seconds);
  const auto whole = static_cast<uint64_t>(std::min(seconds + 0.5, 1e9));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string show_count(uint64_t count) {
  std::string digits = fmt::format("{}", count);
  for (size_t i = digits.size(); i > 3; i -= 3)
    digits.insert(i - 3, 1, ',');
  return digits;
}

std::string show_count(uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", show_count(count), what, count == 1 ? "" : "s");
}

}  // namespace headrace::cli
