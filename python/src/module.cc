// SPDX-License-Identifier: Apache-2.0
// The extension module headrace._core: headrace's public headers and nanobind, nothing of any framework.
// Needs the GIL.
// The types live as long as the interpreter.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include <nanobind/nanobind.h>

#include <headrace/log.h>
#include <headrace/version.h>

#include "atomic_file_object.h"
#include "buffer_object.h"
#include "callback.h"
#include "checkpoint.h"
#include "errors.h"
#include "file_object.h"
#include "handle_object.h"
#include "interpreter.h"
#include "report.h"
#include "route.h"
#include "transfer_object.h"
#include "waiting.h"

namespace headrace::python {

namespace {

constexpr Nanoseconds kPatienceForCallbacks = std::chrono::seconds(5);

// Lets callbacks and records that were handed over run, unless one of them takes too long.
void flush_for_a_while() {
  const auto over = std::make_shared<std::atomic<bool>>(false);
  without_gil([&] {
    std::thread([over] {
      flush_dispatcher();
      over->store(true);
      over->notify_all();
    }).detach();
    const auto end = std::chrono::steady_clock::now() + kPatienceForCallbacks;
    while (!over->load() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
}

// Runs once, before the interpreter takes itself apart; see docs of headrace.Handle for what it promises.
void leave_python() {
  close_all_handles();
  flush_for_a_while();
  // In a forked child the lock of the sink may be held for ever; what it would print is stopped below all the same.
  if (fork_generation() == 0) remove_log_sink();
  stop_entries(kPatienceForCallbacks);
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The compiled part of headrace. Import headrace instead.";
  module.attr("__version__") = HEADRACE_VERSION;
  watch_forks();
  bind_buffer(module);
  bind_route(module);
  bind_file(module);
  bind_atomic_file(module);
  bind_transfer(module);
  bind_handle(module);
  bind_waiting(module);
  bind_checkpoint(module);
  bind_report(module);
  install_log_sink();
  import_attribute("atexit", "register")(nb::cpp_function(&leave_python));
}

}  // namespace headrace::python
