// SPDX-License-Identifier: Apache-2.0
// An eventfd that an engine's owner sleeps on: completions and wake() end the sleep, and wake() is told apart.
// signal() and wake() from any thread; the rest from the owner. Must outlive every thread and context that signals it.
// Owns the descriptor.
#pragma once

#include <atomic>

#include <headrace/error.h>

#include "engine/engine.h"
#include "os/fd.h"

namespace headrace::engine {

class WakeEvent {
 public:
  // A ring reads the descriptor itself and wants a blocking one (a non-blocking one would answer EAGAIN at once).
  enum class Mode { polled, read_by_ring };

  [[nodiscard]] Status open(Mode mode);

  [[nodiscard]] int descriptor() const noexcept { return event_.get(); }

  // Makes the descriptor readable.
  void signal() noexcept;

  // Signals, and remembers that someone asked, until take_wake(). A storm of wakes costs one system call.
  void wake() noexcept;

  // Whether wake() was called since the last time.
  [[nodiscard]] bool take_wake() noexcept { return wake_asked_.exchange(false); }

  // Sleeps until signalled, a signal handler ran, or the deadline; forgets the signals. False: the deadline is over.
  [[nodiscard]] bool sleep(Deadline deadline) noexcept;

 private:
  os::Fd event_;
  std::atomic<bool> wake_asked_ = false;  // set by wake(), taken by the owner
};

}  // namespace headrace::engine
