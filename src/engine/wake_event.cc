// SPDX-License-Identifier: Apache-2.0
// See wake_event.h.
// signal() and wake() from any thread; the rest from the owner.
// Owns the descriptor.
#include "engine/wake_event.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "engine/deadline.h"
#include "os/error.h"

namespace headrace::engine {

Status WakeEvent::open(Mode mode) {
  const int flags = EFD_CLOEXEC | (mode == Mode::polled ? EFD_NONBLOCK : 0);
  event_ = os::Fd(::eventfd(0, flags));
  if (!event_.is_open()) return std::unexpected(os::system_error("eventfd", {}, errno));
  return {};
}

void WakeEvent::signal() noexcept {
  const uint64_t one = 1;
  // Fails only when 2^64-2 signals are pending: then the descriptor is readable anyway.
  while (::write(event_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void WakeEvent::wake() noexcept {
  if (!wake_asked_.exchange(true)) signal();
}

bool WakeEvent::sleep(Deadline deadline) noexcept {
  pollfd poll = {.fd = event_.get(), .events = POLLIN, .revents = 0};
  timespec timeout = {};
  if (deadline) {
    const int64_t left = nanoseconds_until(*deadline);
    if (left == 0) return false;
    timeout = {.tv_sec = static_cast<time_t>(left / kNanosecondsPerSecond),
               .tv_nsec = static_cast<long>(left % kNanosecondsPerSecond)};
  }
  if (::ppoll(&poll, 1, deadline ? &timeout : nullptr, nullptr) > 0) {
    uint64_t signals = 0;
    [[maybe_unused]] const ssize_t got = ::read(event_.get(), &signals, sizeof signals);
  }
  return true;
}

}  // namespace headrace::engine
