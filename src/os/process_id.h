// SPDX-License-Identifier: Apache-2.0
// Which process this is, without a system call: a page that the kernel wipes in every child made by fork.
// Any thread.
// The page is process-wide and never unmapped.
#pragma once

#include <sys/types.h>

namespace headrace::os {

// getpid(), as cheap as a load. Objects that hold threads, rings or locks compare it with the process that made them.
[[nodiscard]] pid_t process_id() noexcept;

}  // namespace headrace::os
