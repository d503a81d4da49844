// SPDX-License-Identifier: Apache-2.0
// How an Error reads, and the names of errnos and error codes.
// Any thread.
// Owns nothing.
#include <headrace/error.h>

#include <cstring>

#include <fmt/format.h>

namespace headrace {

namespace {

std::string_view words_for(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::system: return "failed";
    case ErrorCode::end_of_file: return "end of file";
    case ErrorCode::timed_out: return "timed out";
    case ErrorCode::invalid_argument: return "invalid argument";
    case ErrorCode::limit_reached: return "limit reached";
    default: return error_code_name(code);  // a word already
  }
}

}  // namespace

std::string Error::message() const {
  std::string text = operation.empty() ? std::string("request") : operation;
  if (!path.empty()) text += fmt::format(" of '{}'", path);
  if (length_bytes != 0) {
    text += fmt::format(" at offset {}, length {}", offset_bytes, length_bytes);
  } else if (code == ErrorCode::corrupt) {
    text += fmt::format(" at offset {}", offset_bytes);
  }
  text += ": ";
  if (errno_value != 0) {
    char buffer[128];
    // The GNU variant: it may return a string of its own and leave the buffer alone.
    text += fmt::format("{} ({})", errno_name(errno_value), strerror_r(errno_value, buffer, sizeof buffer));
  } else if (length_bytes == 0 && !detail.empty()) {
    return text + detail;
  } else {
    text += words_for(code);
  }
  if (length_bytes != 0 && code != ErrorCode::corrupt) text += fmt::format(", {} bytes transferred", transferred_bytes);
  if (!detail.empty()) text += "; " + detail;
  return text;
}

std::string_view error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::system: return "system";
    case ErrorCode::end_of_file: return "end_of_file";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::aborted: return "aborted";
    case ErrorCode::timed_out: return "timed_out";
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::unavailable: return "unavailable";
    case ErrorCode::limit_reached: return "limit_reached";
    case ErrorCode::interrupted: return "interrupted";
    case ErrorCode::closed: return "closed";
    case ErrorCode::corrupt: return "corrupt";
  }
  return "unknown";
}

std::string_view errno_name(int errno_value) noexcept {
  const char* name = strerrorname_np(errno_value);
  return name != nullptr ? name : "E?";
}

}  // namespace headrace
