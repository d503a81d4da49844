// SPDX-License-Identifier: Apache-2.0
// Where the program writes: results on standard output, everything else on standard error; and what kind of place that is.
// One thread.
// Owns the text not yet written. Standard output and standard error belong to the process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::cli {

enum class OutputForm : uint8_t { text, json };

class Console {
 public:
  Console();

  // A line of the result. Kept until flush() or until there is much of it.
  void line(std::string_view text = {});
  // A line for people, now. The progress bar, if there is one, goes away before it.
  void note(std::string_view text);
  // Writes what is kept. False when the reader has gone, or when the text could not be written.
  bool flush();
  // After flush() said false: 0 where the reader has gone, which is no error, else the errno.
  [[nodiscard]] int write_error() const noexcept { return write_error_; }
  [[nodiscard]] bool reader_gone() const noexcept { return reader_gone_; }

  // Columns of the terminal, or 0 where standard output is none: lines may be as long as they like then.
  [[nodiscard]] size_t columns() const noexcept { return columns_; }
  // Of standard error; 0 where that is no terminal, or one on which a line cannot be taken back.
  [[nodiscard]] size_t note_columns() const noexcept { return note_columns_; }
  // Bold where standard output is a terminal that shows it and NO_COLOR is not set.
  [[nodiscard]] std::string bold(std::string_view text) const;

  // Replaces the line that the last call wrote on the terminal of standard error; empty: takes it away.
  void show_status(std::string_view text);

 private:
  std::string kept_;
  int write_error_ = 0;
  bool reader_gone_ = false;
  bool status_shown_ = false;
  bool styled_ = false;
  size_t columns_ = 0;
  size_t note_columns_ = 0;
};

// For people: control characters, which files from strangers may hold, and bytes that are not UTF-8 become \xNN.
[[nodiscard]] std::string printable(std::string_view text);
// At most so many bytes of it, cut between characters.
[[nodiscard]] std::string_view beginning(std::string_view text, size_t bytes_max);
// How many columns of a terminal the text takes, as far as its code points tell; text must be UTF-8.
[[nodiscard]] size_t text_columns(std::string_view text);

enum class Align : uint8_t { left, right };

// Rows of cells under a head, each column as wide as its widest cell. On a terminal too narrow for that, cells of the first
// left column are cut, and what then still does not fit is left to the terminal.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
  };
  explicit Table(std::vector<Column> columns);
  void row(std::vector<std::string> cells);
  [[nodiscard]] bool empty() const noexcept { return rows_.empty(); }
  void print(Console& console) const;

 private:
  [[nodiscard]] std::string join(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace headrace::cli
