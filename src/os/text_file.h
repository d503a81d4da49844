// SPDX-License-Identifier: Apache-2.0
// Small text that the kernel offers under /proc and /sys: bounded, and absent in many containers.
// Any thread.
// Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::os {

inline constexpr size_t kTextBytesMax = 4096;

// The first `bytes_max` bytes of a regular file, or none when it cannot be read.
[[nodiscard]] std::optional<std::string> read_text(const std::string& path, size_t bytes_max = kTextBytesMax);

// The same without control characters, in one line and without blanks at its ends: fit to be shown. None when that is empty.
[[nodiscard]] std::optional<std::string> read_line(const std::string& path);

// A decimal number with nothing but blanks around it.
[[nodiscard]] std::optional<uint64_t> read_number(const std::string& path);

// Only the first line; control characters become '?'.
[[nodiscard]] std::string one_line(std::string_view text);

[[nodiscard]] std::string_view trim(std::string_view text) noexcept;

[[nodiscard]] std::optional<uint64_t> parse_number(std::string_view text) noexcept;

}  // namespace headrace::os
