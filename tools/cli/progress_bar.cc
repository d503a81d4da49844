// SPDX-License-Identifier: Apache-2.0
#include "progress_bar.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "signals.h"
#include "units.h"

namespace headrace::cli {

ProgressBar::ProgressBar(Console& console) : console_(console), shown_(begin_) {}

Progress ProgressBar::progress() {
  return {.show = [this](const ProgressNow& now) { show(now); }, .interrupted = [] { return stopped(); }};
}

double ProgressBar::seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

Exit ProgressBar::report(const Error& error) const {
  if (error.code != ErrorCode::interrupted) return report_error(console_, error);
  Error told = error;
  told.detail += fmt::format("{}({} of {} were done, in {})", told.detail.empty() ? "" : " ", show_bytes(done_bytes_),
                             show_bytes(total_bytes_), show_seconds(seconds()));
  return report_error(console_, told);
}

void ProgressBar::show(const ProgressNow& now) {
  done_bytes_ = now.done_bytes;
  total_bytes_ = now.total_bytes;
  constexpr auto kTerminalEvery = std::chrono::milliseconds(100);
  constexpr auto kLogEvery = std::chrono::seconds(10);
  const bool terminal = console_.note_columns() > 0;
  const Clock::time_point moment = Clock::now();
  if (moment - shown_ < (terminal ? Clock::duration(kTerminalEvery) : Clock::duration(kLogEvery))) return;
  shown_ = moment;
  if (terminal)
    console_.show_status(progress_line(now, seconds(), console_.note_columns()));
  else
    console_.note(progress_line(now, seconds(), 0));
}

std::string progress_line(const ProgressNow& now, double seconds, size_t columns) {
  const std::string rate = show_rate(now.done_bytes, seconds);
  if (now.total_bytes == 0) return fmt::format("{}: {}, {}", printable(now.what), show_bytes(now.done_bytes), rate);
  const double share = std::min(1.0, static_cast<double>(now.done_bytes) / static_cast<double>(now.total_bytes));
  const std::string percent = fmt::format("{:3.0f} %", 100 * share);
  // Before the first byte nothing is known of the rest.
  const std::string facts =
      share > 0 ? fmt::format("{}, {} left", rate, show_seconds(seconds * (1 - share) / share)) : rate;
  if (columns == 0)
    return fmt::format("{}: {} of {}, {}", printable(now.what), percent, show_bytes(now.total_bytes), facts);
  const std::string head = fmt::format("{} {}", printable(now.what), percent);
  constexpr size_t kBarMin = 8, kBarMax = 30;
  const size_t used = text_columns(head) + facts.size() + 5;
  if (used + kBarMin <= columns) {
    const size_t width = std::min(columns - used, kBarMax);
    const auto full = static_cast<size_t>(share * static_cast<double>(width));
    return fmt::format("{} [{}{}] {}", head, std::string(full, '#'), std::string(width - full, ' '), facts);
  }
  return columns >= percent.size() + rate.size() + 2 ? fmt::format("{} {}", percent, rate) : percent;
}

}  // namespace headrace::cli
