// SPDX-License-Identifier: Apache-2.0
// Keeps SIGXFSZ, which the kernel sends along with EFBIG at the file size limit, from ending a program for a call of ours.
// The thread that makes it also drops it.
// Owns the thread's signal mask meanwhile.
#pragma once

#include <signal.h>

#include <cerrno>
#include <ctime>

namespace headrace::os {

class FileSizeSignalGuard {
 public:
  FileSizeSignalGuard() noexcept {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    sigpending(&pending);
    pending_before_ = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &mask_before_);
  }
  // Takes away what a call made since has raised; what was pending before stays pending.
  ~FileSizeSignalGuard() {
    const int errno_value = errno;
    if (!pending_before_) {
      const timespec at_once = {};
      while (sigtimedwait(&signal_, nullptr, &at_once) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
    errno = errno_value;
  }
  FileSizeSignalGuard(const FileSizeSignalGuard&) = delete;
  FileSizeSignalGuard& operator=(const FileSizeSignalGuard&) = delete;

 private:
  sigset_t signal_;
  sigset_t mask_before_;
  bool pending_before_ = false;
};

}  // namespace headrace::os
