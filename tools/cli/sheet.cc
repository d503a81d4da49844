// SPDX-License-Identifier: Apache-2.0
#include "sheet.h"

#include <algorithm>

#include <fmt/format.h>

namespace headrace::cli {
namespace {

constexpr size_t kColumns = 80;        // where standard output is no terminal
constexpr size_t kColumnsWide = 110;   // longer lines are hard to read
constexpr size_t kNameColumns = 16;    // with the blanks before and after a name
constexpr size_t kColumnsNarrow = 48;  // below that, names and text do not fit side by side

}  // namespace

Sheet::Sheet(Console& console)
    : console_(console),
      columns_(console.columns() == 0 ? kColumns : std::min(console.columns(), kColumnsWide)),
      indent_(columns_ < kColumnsNarrow ? 4 : kNameColumns) {}

void Sheet::head(std::string_view text) {
  for (const std::string& line : wrap(text, columns_))
    console_.line(console_.bold(line));
}

void Sheet::text(std::string_view text) { print({}, text, 0); }

void Sheet::fact(std::string_view name, std::string_view text) {
  const std::string first = fmt::format("  {:<{}}", name, std::max<size_t>(indent_, 3) - 3);
  if (text_columns(first) < indent_) return print(first + ' ', text, indent_);
  console_.line(fmt::format("  {}", name));
  print({}, text, indent_);
}

void Sheet::more(std::string_view text) { print({}, text, indent_); }

void Sheet::print(std::string_view first, std::string_view text, size_t indent) {
  const std::string blanks(indent, ' ');
  bool at_start = !first.empty();
  for (const std::string& line : wrap(text, columns_ - std::min(columns_ - 1, indent))) {
    console_.line(fmt::format("{}{}", at_start ? first : blanks, line));
    at_start = false;
  }
}

std::vector<std::string> wrap(std::string_view text, size_t columns) {
  std::vector<std::string> lines;
  std::string line;
  size_t used = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t width = text_columns(word);
    if (used != 0 && used + 1 + width > columns) {
      lines.push_back(std::move(line));
      line.clear();
      used = 0;
    }
    if (used != 0) line += ' ';
    line += word;
    used += width + (used != 0 ? 1 : 0);
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace headrace::cli
