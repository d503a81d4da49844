// SPDX-License-Identifier: Apache-2.0
// HEADRACE_CHECK states an invariant of this library and stays in release builds.
// Any thread. Never used on user input, file contents or results of the kernel: those are errors, not bugs.
// Ownership: none.
#pragma once

#include <cstdlib>

namespace headrace::base {

// The one place that ends the process: the state is already wrong, and going on would write wrong bytes to someone's disk.
[[noreturn]] inline void check_failed() noexcept { std::abort(); }

}  // namespace headrace::base

#define HEADRACE_CHECK(condition)       \
  do {                                  \
    if (!(condition)) [[unlikely]] {    \
      ::headrace::base::check_failed(); \
    }                                   \
  } while (false)
