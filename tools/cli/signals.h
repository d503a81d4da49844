// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and its like end a command in order: it is asked to stop, cleans up, says what was done, and then the program ends
// by the signal, as shells expect. A second one ends it at once.
// One thread; the handlers may run on any.
// Owns the process's handlers of SIGINT, SIGTERM and SIGHUP, and ignores SIGPIPE: a reader that has gone is seen by its EPIPE.
#pragma once

namespace headrace::cli {

void install_signal_handlers();
// The signal that asked the program to stop, or 0.
[[nodiscard]] int stop_signal() noexcept;
[[nodiscard]] inline bool stopped() noexcept { return stop_signal() != 0; }
// Ends the process as `signal` does where nobody handles it.
[[noreturn]] void end_by_signal(int signal);

}  // namespace headrace::cli
