// SPDX-License-Identifier: Apache-2.0
// JSON that others wrote: read with a bound on its length, parsed with one on its depth. Values are copied and printed by functions
// that call themselves once for each level, so a file of a hundred thousand brackets would end the program.
// Any thread.
// Owns nothing.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <expected>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <headrace/error.h>

#include "signals.h"

namespace headrace::cli {

inline constexpr size_t kJsonBytesMax = size_t{64} << 20;
inline constexpr int kJsonDepthMax = 64;

// The whole file, or pipe.
[[nodiscard]] inline Result<std::string> read_json_text(const std::string& path) {
  const auto failed = [&](const char* operation) {
    return std::unexpected(Error{.errno_value = errno, .operation = operation, .path = path});
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return failed("open");
  std::array<char, 65536> piece;
  Result<std::string> result;
  for (;;) {
    const ssize_t bytes = ::read(descriptor, piece.data(), piece.size());
    if (bytes < 0 && errno == EINTR && !stopped()) continue;
    if (bytes < 0) result = failed("read");
    if (bytes <= 0) break;
    result->append(piece.data(), static_cast<size_t>(bytes));
    if (result->size() <= kJsonBytesMax) continue;
    result = std::unexpected(Error{.code = ErrorCode::invalid_argument,
                                   .operation = "read",
                                   .path = path,
                                   .detail = fmt::format("it is longer than {} bytes", kJsonBytesMax)});
    break;
  }
  ::close(descriptor);
  return result;
}

// What is wrong with it, in words. `on_key(depth, key)` sees each key of an object; those of the outermost have depth 1.
template <class Json, class OnKey>
[[nodiscard]] std::expected<Json, std::string> parse_json(std::string_view text, OnKey on_key) {
  bool too_deep = false;
  Json value = Json::parse(
      text.begin(), text.end(),
      [&](int depth, typename Json::parse_event_t event, Json& parsed) {
        if (depth > kJsonDepthMax) too_deep = true;
        if (event == Json::parse_event_t::key) on_key(depth, parsed.template get_ref<const std::string&>());
        return !too_deep;
      },
      false);
  if (too_deep) return std::unexpected(fmt::format("it is nested deeper than {} levels", kJsonDepthMax));
  if (value.is_discarded()) return std::unexpected(std::string("it is not JSON"));
  return value;
}

template <class Json>
[[nodiscard]] std::expected<Json, std::string> parse_json(std::string_view text) {
  return parse_json<Json>(text, [](int, const std::string&) {});
}

}  // namespace headrace::cli
