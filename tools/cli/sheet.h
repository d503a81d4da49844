// SPDX-License-Identifier: Apache-2.0
// Facts with their names before them, wrapped to the terminal; 80 columns where there is none.
// One thread.
// Borrows the console, which must outlive it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "console.h"

namespace headrace::cli {

class Sheet {
 public:
  explicit Sheet(Console& console);

  // Text must be printable(): nothing here looks at it.
  void head(std::string_view text);
  void gap() { console_.line(); }
  void text(std::string_view text);
  // On a narrow terminal the text goes on below its name, not beside it.
  void fact(std::string_view name, std::string_view text);
  // Of the last fact, on lines of its own.
  void more(std::string_view text);

 private:
  void print(std::string_view first, std::string_view text, size_t indent);

  Console& console_;
  size_t columns_;
  size_t indent_;
};

// Lines of at most `columns` columns, broken at blanks; a word that is longer stands alone and is not cut.
[[nodiscard]] std::vector<std::string> wrap(std::string_view text, size_t columns);

}  // namespace headrace::cli
