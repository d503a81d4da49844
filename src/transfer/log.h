// SPDX-License-Identifier: Apache-2.0
// Hands a record to the program's sink, by way of the dispatcher thread.
// Any thread.
// The sink is process-wide, as set by set_log_sink().
#pragma once

#include <string>

#include <headrace/log.h>

namespace headrace::transfer {

// Costs nothing when no sink is set.
void log(LogLevel level, std::string message);

}  // namespace headrace::transfer
