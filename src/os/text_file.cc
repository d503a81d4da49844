// SPDX-License-Identifier: Apache-2.0
// Plain reads. What a file under /sys holds may come from a device's firmware, so it is never trusted to be printable.
// Any thread.
// Owns nothing.
#include "os/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "os/fd.h"

namespace headrace::os {

std::optional<std::string> read_text(const std::string& path, size_t bytes_max) {
  // Without O_NONBLOCK a FIFO of that name would hang the open.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat status = {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::string text;
  while (text.size() < bytes_max) {
    char piece[4096];
    const ssize_t got = ::read(file.get(), piece, std::min(sizeof piece, bytes_max - text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    text.append(piece, static_cast<size_t>(got));
  }
  return text;
}

std::optional<std::string> read_line(const std::string& path) {
  const std::optional<std::string> text = read_text(path);
  if (!text) return std::nullopt;
  std::string line = one_line(*text);
  return line.empty() ? std::nullopt : std::optional(std::move(line));
}

std::optional<uint64_t> read_number(const std::string& path) {
  const std::optional<std::string> text = read_text(path, 64);
  return text ? parse_number(*text) : std::nullopt;
}

std::string one_line(std::string_view text) {
  std::string line(trim(text.substr(0, text.find('\n'))));
  for (char& character : line) {
    if (static_cast<unsigned char>(character) < 0x20 || character == 0x7f) character = '?';
  }
  return line;
}

std::string_view trim(std::string_view text) noexcept {
  constexpr std::string_view kBlanks(" \t\r\n\0", 5);
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::optional<uint64_t> parse_number(std::string_view text) noexcept {
  const std::string_view digits = trim(text);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  return value;
}

}  // namespace headrace::os
