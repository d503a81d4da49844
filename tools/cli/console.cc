// SPDX-License-Identifier: Apache-2.0
#include "console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

namespace headrace::cli {
namespace {

constexpr size_t kKeepBytes = size_t{64} << 10;

size_t columns_of(int descriptor) {
  if (::isatty(descriptor) == 0) return 0;
  winsize size = {};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// The errno, or 0.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

// Length of the UTF-8 sequence at the start of `text`; 0 where there is none.
size_t sequence_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool outside = (first == 0xed && byte(1) > 0x9f) || (first == 0xf4 && byte(1) > 0x8f);
  return overlong || outside ? 0 : length;
}

// Controls of ISO 6429 and of Unicode's writing direction, which can make a terminal show what is not there.
bool is_control(std::string_view sequence) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(sequence[i]); };
  if (sequence.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (sequence.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;
  if (sequence.size() != 3 || byte(0) != 0xe2) return false;
  return (byte(1) == 0x80 && byte(2) >= 0xa8 && byte(2) <= 0xae) ||
         (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);
}

// Does a terminal take escape sequences?
bool is_smart() {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
}

bool wants_style() {
  const char* no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || *no_color == '\0') && is_smart();
}

// At most `columns` wide, the end replaced by "…".
std::string cut(std::string_view text, size_t columns) {
  if (text_columns(text) <= columns) return std::string(text);
  std::string shown;
  size_t used = 1;
  while (!text.empty() && used < columns) {
    const size_t length = std::max<size_t>(sequence_bytes(text), 1);
    shown += text.substr(0, length);
    text.remove_prefix(length);
    ++used;
  }
  return shown + "…";
}

}  // namespace

Console::Console()
    : styled_(::isatty(STDOUT_FILENO) != 0 && wants_style()),
      columns_(columns_of(STDOUT_FILENO)),
      note_columns_(is_smart() ? columns_of(STDERR_FILENO) : 0) {}

void Console::line(std::string_view text) {
  if (reader_gone_ || write_error_ != 0) return;
  kept_ += text;
  kept_ += '\n';
  if (kept_.size() >= kKeepBytes) (void)flush();
}

bool Console::flush() {
  if (reader_gone_ || write_error_ != 0) return false;
  if (kept_.empty()) return true;
  show_status({});
  const int error = write_all(STDOUT_FILENO, kept_);
  kept_.clear();
  if (error == EPIPE)
    reader_gone_ = true;
  else
    write_error_ = error;
  return error == 0;
}

void Console::note(std::string_view text) {
  (void)flush();
  show_status({});
  (void)write_all(STDERR_FILENO, fmt::format("{}\n", text));
}

void Console::show_status(std::string_view text) {
  if (note_columns_ == 0 || (text.empty() && !status_shown_)) return;
  // A line that fills the last column would wrap, and could not be taken back.
  (void)write_all(STDERR_FILENO, fmt::format("\r{}\033[K", cut(text, note_columns_ - 1)));
  status_shown_ = !text.empty();
}

std::string Console::bold(std::string_view text) const {
  return styled_ ? fmt::format("\033[1m{}\033[0m", text) : std::string(text);
}

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const size_t length = sequence_bytes(text);
    const std::string_view sequence = text.substr(0, std::max<size_t>(length, 1));
    if (length == 0 || is_control(sequence)) {
      for (const char c : sequence)
        shown += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    } else {
      shown += sequence;
    }
    text.remove_prefix(sequence.size());
  }
  return shown;
}

std::string_view beginning(std::string_view text, size_t bytes_max) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const size_t length = std::max<size_t>(sequence_bytes(text.substr(bytes)), 1);
    if (length > bytes_max - bytes) break;
    bytes += length;
  }
  return text.substr(0, bytes);
}

size_t text_columns(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

void Table::print(Console& console) const {
  std::vector<size_t> widths;
  std::vector<std::string> titles;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = text_columns(columns_[i].title);
    for (const std::vector<std::string>& cells : rows_)
      width = std::max(width, text_columns(cells[i]));
    widths.push_back(width);
    titles.push_back(columns_[i].title);
  }
  if (console.columns() > 0) {
    size_t total = 2 * (widths.size() - 1);
    for (const size_t width : widths)
      total += width;
    const auto elastic = std::ranges::find(columns_, Align::left, &Column::align);
    if (total > console.columns() && elastic != columns_.end()) {
      size_t& width = widths[static_cast<size_t>(elastic - columns_.begin())];
      constexpr size_t kColumnsMin = 8;
      width = std::max(std::min(width, kColumnsMin), width - std::min(width, total - console.columns()));
    }
  }
  console.line(console.bold(join(titles, widths)));
  for (const std::vector<std::string>& cells : rows_)
    console.line(join(cells, widths));
}

std::string Table::join(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const {
  std::string joined;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string text = cut(cells[i], widths[i]);
    const std::string space(widths[i] - std::min(widths[i], text_columns(text)), ' ');
    if (i > 0) joined += "  ";
    joined += columns_[i].align == Align::right ? space + text : text + space;
  }
  joined.resize(joined.find_last_not_of(' ') + 1);
  return joined;
}

}  // namespace headrace::cli
