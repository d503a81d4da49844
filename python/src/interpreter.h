// SPDX-License-Identifier: Apache-2.0
// What the module knows of the interpreter it lives in: whether it is leaving, whether this process is a fork, and how
// a thread of the library enters it and a Python thread steps out of it for a while. Any thread, as each comment says.
// Owns nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include <nanobind/nanobind.h>

namespace headrace::python {

namespace nb = nanobind;
using Nanoseconds = std::chrono::nanoseconds;

// True once the interpreter's exit has closed the handles of this module. From then on no thread of the library touches
// Python, and what would have been released there is left to the end of the process.
bool interpreter_is_leaving() noexcept;

// A number that differs in a forked child.
uint32_t fork_generation() noexcept;

// Registers a handler with os.register_at_fork. Call once, while the module is imported.
void watch_forks();

// From now on nothing enters Python. Waits, without the GIL, for the threads that are on their way in.
void stop_entries(Nanoseconds patience);

// Takes the GIL back in a thread that gave it up. A daemon thread that comes back while the interpreter ends sleeps for
// ever here: CPython before 3.14 would end it by unwinding through C++ frames, which ends the process.
void take_gil_back(PyThreadState* state) noexcept;

// Runs `work` without the GIL.
template <class Work>
auto without_gil(Work&& work) {
  struct Back {
    PyThreadState* state = PyEval_SaveThread();
    ~Back() { take_gil_back(state); }
  } back;
  return std::forward<Work>(work)();
}

// The GIL for a thread of the library, as long as the interpreter can be entered: test it before use.
class PythonEntry {
 public:
  PythonEntry() noexcept;
  ~PythonEntry();
  PythonEntry(const PythonEntry&) = delete;
  PythonEntry& operator=(const PythonEntry&) = delete;
  explicit operator bool() const noexcept { return entered_; }

 private:
  bool entered_ = false;
  PyGILState_STATE state_ = PyGILState_UNLOCKED;
};

// Runs Python's signal handlers; true when one raised, and what it raised stays pending in this thread. Called without the
// GIL, by calls of the library that wait: their ErrorCode::interrupted becomes that exception.
bool signal_handler_raised();

// A point in time, made from the seconds that Python callers give. None waits for ever.
class Deadline {
 public:
  explicit Deadline(std::optional<double> timeout_s);  // raises ValueError for NaN
  [[nodiscard]] bool expired() const;
  // What is left, at most `slice`, never negative.
  [[nodiscard]] Nanoseconds next(Nanoseconds slice) const;

 private:
  std::optional<std::chrono::steady_clock::time_point> end_;
};

// How long a wait stays out of reach of Python's signal handlers, where no signal ends it early.
inline constexpr Nanoseconds kWaitSlice = std::chrono::milliseconds(100);

// Calls `step(nanoseconds)` without the GIL until it returns true or the deadline has passed, and lets signal handlers run
// in between (Ctrl-C raises here). Returns the last answer.
template <class Step>
bool wait_in_slices(const Deadline& deadline, Step&& step) {
  for (;;) {
    const Nanoseconds slice = deadline.next(kWaitSlice);
    if (without_gil([&] { return step(slice); })) return true;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (deadline.expired()) return false;
  }
}

}  // namespace headrace::python
