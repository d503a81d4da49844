// SPDX-License-Identifier: Apache-2.0
// What the formats share: their errors, and how a name from a file is shown in one.
// Any thread: pure functions.
// Owns nothing.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <headrace/error.h>

namespace headrace::format {

inline std::unexpected<Error> corrupt(std::string_view operation, uint64_t offset_bytes, std::string detail) {
  return std::unexpected(Error{.code = ErrorCode::corrupt,
                               .operation = std::string(operation),
                               .offset_bytes = offset_bytes,
                               .detail = std::move(detail)});
}

inline std::unexpected<Error> refused(std::string_view operation, std::string detail) {
  return std::unexpected(
      Error{.code = ErrorCode::invalid_argument, .operation = std::string(operation), .detail = std::move(detail)});
}

inline std::unexpected<Error> no_memory(std::string_view operation) {
  return std::unexpected(Error{.errno_value = ENOMEM, .operation = std::string(operation)});
}

// The name between quotes, for a message of one line: control characters and quotes escaped, the middle of a long name
// left out.
inline std::string quote_name(std::string_view name) {
  constexpr size_t kHeadBytes = 60, kTailBytes = 20;
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(name[at]) & 0xC0U) == 0x80U; };
  size_t head = name.size(), tail = name.size();
  if (name.size() > kHeadBytes + kTailBytes) {
    head = kHeadBytes;
    tail = name.size() - kTailBytes;
    while (head > 0 && continues(head))
      --head;  // at most three steps in UTF-8
    while (tail < name.size() && continues(tail))
      ++tail;
  }
  std::string text = "'";
  const auto append = [&](std::string_view part) {
    for (const char c : part) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7F) {
        text += fmt::format("\\x{:02x}", byte);
      } else {
        if (c == '\'' || c == '\\') text += '\\';
        text += c;
      }
    }
  };
  append(name.substr(0, head));
  if (head != name.size()) text += "...";
  append(name.substr(tail));
  text += '\'';
  return text;
}

}  // namespace headrace::format
