// SPDX-License-Identifier: Apache-2.0
// What a long command shows while it works: a bar with rate and time left on a terminal, else a line now and then.
// One thread.
// Borrows the console, which must outlive it; takes its line off the terminal when it goes.
#pragma once

#include <chrono>
#include <cstdint>

#include <headrace/progress.h>

#include "command.h"
#include "console.h"

namespace headrace::cli {

class ProgressBar {
 public:
  explicit ProgressBar(Console& console);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { console_.show_status({}); }

  // For the call that works; ends it when a signal asked the program to stop. This object must outlive the call.
  [[nodiscard]] Progress progress();
  [[nodiscard]] double seconds() const;
  // report_error(), and how far the call was if a signal stopped it.
  Exit report(const Error& error) const;

 private:
  using Clock = std::chrono::steady_clock;
  void show(const ProgressNow& now);

  Console& console_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

// "reading   42 % [#####       ] 3.10 GB/s, 0:05 left", in at most `columns`.
[[nodiscard]] std::string progress_line(const ProgressNow& now, double seconds, size_t columns);

}  // namespace headrace::cli
