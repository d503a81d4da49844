// SPDX-License-Identifier: Apache-2.0
// Linux native AIO by its system calls; libaio is not needed. Every function returns a negative errno when it fails.
// Any thread, as far as the kernel allows it for one context.
// Owns nothing: a context lives from io_setup to io_destroy.
#pragma once

#include <errno.h>
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace headrace::os {

// `context` must be 0 on entry.
[[nodiscard]] inline int io_setup(unsigned depth, aio_context_t* context) noexcept {
  return ::syscall(SYS_io_setup, depth, context) == 0 ? 0 : -errno;
}

// Waits for everything in flight.
inline int io_destroy(aio_context_t context) noexcept { return ::syscall(SYS_io_destroy, context) == 0 ? 0 : -errno; }

// Returns how many were taken. An error of the first one is returned; of a later one it merely ends the count.
[[nodiscard]] inline long io_submit(aio_context_t context, long count, iocb** blocks) noexcept {
  const long taken = ::syscall(SYS_io_submit, context, count, blocks);
  return taken >= 0 ? taken : -long{errno};
}

[[nodiscard]] inline long io_getevents(aio_context_t context, long count_min, long count_max, io_event* events,
                                       timespec* timeout) noexcept {
  const long count = ::syscall(SYS_io_getevents, context, count_min, count_max, events, timeout);
  return count >= 0 ? count : -long{errno};
}

}  // namespace headrace::os
