// SPDX-License-Identifier: Apache-2.0
// The library prints nothing: what it wants to say (a fall-back taken, a limit met) goes to one sink of the program's.
// Any thread may set the sink; it is called on the library's dispatcher thread, never on an I/O thread.
// The library keeps every sink it was given until the process ends: a record may be on its way to a replaced one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <headrace/export.h>

namespace headrace {

enum class LogLevel : uint8_t { info, warning, error };

struct LogRecord {
  LogLevel level = LogLevel::info;
  std::string message;
};

// Replaces the sink; an empty function drops records. Each fall-back is reported once per handle.
HEADRACE_EXPORT void set_log_sink(std::function<void(const LogRecord&)> sink);

// Waits until every record and callback handed over before this call has run. Not from a callback.
HEADRACE_EXPORT void flush_dispatcher();

}  // namespace headrace
