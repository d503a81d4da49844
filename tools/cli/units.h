// SPDX-License-Identifier: Apache-2.0
// Sizes, rates and times as people write and read them.
// Any thread: pure functions.
// They own what they return.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

namespace headrace::cli {

// "4096", "400M", "1.5G", "2GiB", "1GB": K, M, G, T and KiB ... are powers of 1024, as ds_io, fio and dd mean them; KB, MB,
// GB and TB are powers of 1000. On failure what is wrong, for people.
[[nodiscard]] std::expected<uint64_t, std::string> parse_bytes(std::string_view text);

// "0 B", "999 B", "1.50 KB", "2.21 GB": powers of 1000, three digits.
[[nodiscard]] std::string show_bytes(uint64_t bytes);
// "4 MiB", "512 B", "1000 B": exact, for what is a power of two.
[[nodiscard]] std::string show_binary_bytes(uint64_t bytes);
// "3.02 GB/s"
[[nodiscard]] std::string show_rate(uint64_t bytes, double seconds);
// "0.42 s", "1:05", "2:00:10"
[[nodiscard]] std::string show_seconds(double seconds);
// "1 tensor", "2,000 tensors"
[[nodiscard]] std::string show_count(uint64_t count, std::string_view what);
// "1,234,567"
[[nodiscard]] std::string show_count(uint64_t count);

}  // namespace headrace::cli
