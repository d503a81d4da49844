// SPDX-License-Identifier: Apache-2.0
// See interpreter.h. The module's only global state: three atomics that describe the process.
// Any thread.
// Owns nothing.
#include "interpreter.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

namespace headrace::python {

namespace {

// `leaving` and `entering` answer each other: a thread counts itself in, then looks at `leaving`; the exit sets `leaving`, then
// waits for the count. Both orders are sequentially consistent, so that one of the two sees the other.
std::atomic<bool> leaving{false};
std::atomic<int32_t> entering{0};
std::atomic<uint32_t> generation{0};
std::atomic<unsigned long> leaving_thread{0};

// Forks that Python does not see, by exec or in C, run no Python code in the child.
void after_fork_in_child() {
  generation.fetch_add(1);
  entering.store(0);  // the threads that were on their way in do not exist here; a fork in a callback makes it -1 later
}

}  // namespace

bool interpreter_is_leaving() noexcept { return leaving.load(); }

uint32_t fork_generation() noexcept { return generation.load(); }

void watch_forks() {
  const nb::object os = nb::module_::import_("os");
  os.attr("register_at_fork")(nb::arg("after_in_child") = nb::cpp_function(&after_fork_in_child));
}

void stop_entries(Nanoseconds patience) {
  leaving_thread.store(PyThread_get_thread_ident());
  leaving.store(true);
  const auto end = std::chrono::steady_clock::now() + patience;
  without_gil([&] {
    while (entering.load() > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
}

void take_gil_back(PyThreadState* state) noexcept {
  entering.fetch_add(1);
  if (leaving.load() && leaving_thread.load() != PyThread_get_thread_ident()) {
    entering.fetch_sub(1);
    for (;;)
      std::this_thread::sleep_for(std::chrono::hours(1));
  }
  PyEval_RestoreThread(state);
  entering.fetch_sub(1);
}

PythonEntry::PythonEntry() noexcept {
  entering.fetch_add(1);
  if (leaving.load()) {
    entering.fetch_sub(1);
    return;
  }
  state_ = PyGILState_Ensure();
  entered_ = true;
}

PythonEntry::~PythonEntry() {
  if (!entered_) return;
  PyGILState_Release(state_);
  entering.fetch_sub(1);
}

Deadline::Deadline(std::optional<double> timeout_s) {
  if (!timeout_s) return;
  if (std::isnan(*timeout_s)) {
    PyErr_SetString(PyExc_ValueError, "timeout must be a number of seconds or None, not NaN");
    throw nb::python_error();
  }
  constexpr double kForeverS = 1e9;  // thirty years: no clock here overflows
  if (*timeout_s > kForeverS) return;
  const double seconds = std::fmax(*timeout_s, 0.0);
  end_ = std::chrono::steady_clock::now() +
         std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(seconds));
}

bool Deadline::expired() const { return end_ && std::chrono::steady_clock::now() >= *end_; }

Nanoseconds Deadline::next(Nanoseconds slice) const {
  if (!end_) return slice;
  const auto left = std::chrono::duration_cast<Nanoseconds>(*end_ - std::chrono::steady_clock::now());
  return std::clamp(left, Nanoseconds{0}, slice);
}

bool signal_handler_raised() {
  const PythonEntry entry;
  return entry && PyErr_CheckSignals() != 0;
}

}  // namespace headrace::python
