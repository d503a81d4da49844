// SPDX-License-Identifier: Apache-2.0
// Python callbacks of transfers, and the log sink that feeds the logger "headrace".
// Registering needs the GIL; what was registered runs on the library's dispatcher thread, which takes the GIL for it.
// The C++ closure owns the function and the Transfer until it has run.
#pragma once

#include <nanobind/nanobind.h>

#include <headrace/log.h>
#include <headrace/transfer.h>

namespace headrace::python {

namespace nb = nanobind;

void call_when_done(const Transfer& transfer, nb::object transfer_object, nb::object function);

// True inside a callback: the dispatcher thread can run no other one meanwhile.
[[nodiscard]] bool on_callback_thread() noexcept;

// Routes the library's records to the logger "headrace". logging is imported with the first record, not before.
void install_log_sink();
void remove_log_sink();

// Puts a record of this module's own there. For failures that no caller is left to hear of; never raises.
void log_record(LogLevel level, nb::handle message) noexcept;

}  // namespace headrace::python
