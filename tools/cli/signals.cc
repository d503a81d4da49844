// SPDX-License-Identifier: Apache-2.0
#include "signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace headrace::cli {
namespace {

// Written by the handler, read by stop_signal().
std::atomic<int> stop_by = 0;
static_assert(std::atomic<int>::is_always_lock_free);

// A second one ends the program, whichever it is.
void ask_to_stop(int signal) {
  stop_by.store(signal, std::memory_order_relaxed);
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  for (const int one : {SIGINT, SIGTERM, SIGHUP})
    ::sigaction(one, &by_default, nullptr);
}

}  // namespace

void install_signal_handlers() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    // What was ignored stays so: nohup, or a shell that runs this in the background.
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_handler = ask_to_stop;
    sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, nullptr);
}

int stop_signal() noexcept { return stop_by.load(std::memory_order_relaxed); }

void end_by_signal(int signal) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  sigset_t only = {};
  sigemptyset(&only);
  sigaddset(&only, signal);
  ::sigprocmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);
}

}  // namespace headrace::cli
