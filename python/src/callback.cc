// SPDX-License-Identifier: Apache-2.0
// See callback.h. After the interpreter's exit nothing here runs or is released.
// Threads as callback.h says.
// Owners as callback.h says.
#include "callback.h"

#include <memory>
#include <utility>

#include "errors.h"
#include "interpreter.h"

namespace headrace::python {

namespace {

thread_local bool runs_callback = false;

struct Callback {
  nb::object transfer;
  nb::object function;

  // Any exception ends here, KeyboardInterrupt included: there is no caller on this thread.
  void run() noexcept {
    const bool before = std::exchange(runs_callback, true);
    try {
      function(transfer);
    } catch (nb::python_error& error) {
      report(error);
    }
    runs_callback = before;
    function.reset();
    transfer.reset();
  }

  void report(nb::python_error& error) noexcept {
    try {
      import_attribute("headrace._log", "log_callback_error")(transfer, error.value());
    } catch (nb::python_error& second) {
      second.discard_as_unraisable(function);
    }
  }
};

// The closure may be dropped without having run, in any thread.
void drop(Callback* callback) noexcept {
  const PythonEntry python;
  if (!python) return;
  delete callback;
}

}  // namespace

bool on_callback_thread() noexcept { return runs_callback; }

void call_when_done(const Transfer& transfer, nb::object transfer_object, nb::object function) {
  const std::shared_ptr<Callback> callback(new Callback{std::move(transfer_object), std::move(function)}, &drop);
  transfer.on_done([callback](const Transfer&) {
    const PythonEntry python;
    if (python) callback->run();
  });
}

void log_record(LogLevel level, nb::handle message) noexcept {
  const nb::error_scope keep_the_error_in_flight;
  try {
    import_attribute("headrace._log", "log_record")(static_cast<int>(level), message);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("the logger \"headrace\"");
  }
}

void install_log_sink() {
  set_log_sink([](const LogRecord& record) {
    const PythonEntry python;
    if (!python) return;
    const nb::object message = nb::steal(
        PyUnicode_DecodeUTF8(record.message.data(), static_cast<Py_ssize_t>(record.message.size()), "surrogateescape"));
    if (message.is_valid()) {
      log_record(record.level, message);
    } else {
      PyErr_Clear();
    }
  });
}

void remove_log_sink() { set_log_sink({}); }

}  // namespace headrace::python
