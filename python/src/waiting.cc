// SPDX-License-Identifier: Apache-2.0
// See waiting.h.
// Threads as waiting.h says.
// Owners as waiting.h says.
#include "waiting.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <headrace/transfer.h>

#include "callback.h"
#include "errors.h"
#include "transfer_object.h"

namespace headrace::python {

namespace {

using Clock = std::chrono::steady_clock;

WaitFor parse_condition(const std::string& word) {
  if (word == "FIRST_COMPLETED") return WaitFor::any;
  if (word == "FIRST_EXCEPTION") return WaitFor::first_error;
  if (word == "ALL_COMPLETED") return WaitFor::all;
  refuse(PyExc_ValueError, "return_when is '%s'; allowed: FIRST_COMPLETED, FIRST_EXCEPTION, ALL_COMPLETED",
         word.c_str());
}

std::vector<Transfer> shares_of(nb::handle transfers) {
  std::vector<Transfer> shares;
  for (nb::handle object : nb::iter(transfers)) {
    if (!nb::isinstance<TransferObject>(object))
      refuse(PyExc_TypeError, "a headrace.Transfer is wanted, not %R", object.ptr());
    const auto& transfer = nb::cast<const TransferObject&>(object);
    transfer.check_process();
    shares.push_back(transfer.transfer());
  }
  return shares;
}

void wait_for(nb::handle transfers, const std::string& return_when, std::optional<double> timeout_s) {
  const WaitFor condition = parse_condition(return_when);
  const Deadline deadline(timeout_s);
  const std::vector<Transfer> shares = shares_of(transfers);
  if (shares.empty()) return;
  wait_in_slices(deadline, [&](Nanoseconds slice) {
    // It comes back before the time only when the condition holds.
    const Clock::time_point end = Clock::now() + slice;
    return wait(shares, condition, slice) == shares.size() || Clock::now() < end;
  });
}

// Positions of finished transfers, in the order in which they finished.
class Completions {
 public:
  explicit Completions(nb::handle transfers) {
    if (on_callback_thread()) {
      refuse(
          PyExc_RuntimeError,
          "as_completed cannot be used in a callback: it waits for the thread that runs callbacks; use headrace.wait");
    }
    const std::vector<Transfer> shares = shares_of(transfers);
    for (size_t i = 0; i < shares.size(); ++i) {
      shares[i].on_done([queue = queue_, i](const Transfer&) { queue->push(i); });
    }
  }

  // The next position, or TimeoutError.
  [[nodiscard]] size_t next(std::optional<double> timeout_s) {
    const Deadline deadline(timeout_s);
    std::optional<size_t> found;
    const auto queue = queue_;
    wait_in_slices(deadline, [&](Nanoseconds slice) { return (found = queue->pop(slice)).has_value(); });
    if (!found) refuse(PyExc_TimeoutError, "no transfer finished in time");
    return *found;
  }

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<size_t> positions;  // guarded by mutex

    void push(size_t position) {
      {
        const std::lock_guard lock(mutex);
        positions.push_back(position);
      }
      changed.notify_one();
    }

    std::optional<size_t> pop(Nanoseconds patience) {
      std::unique_lock lock(mutex);
      if (!changed.wait_for(lock, patience, [&] { return !positions.empty(); })) return std::nullopt;
      const size_t position = positions.front();
      positions.pop_front();
      return position;
    }
  };

  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace

void bind_waiting(nb::module_& module) {
  module.def("wait_for", &wait_for, nb::arg("transfers"), nb::arg("return_when"), nb::arg("timeout").none(),
             nb::sig("def wait_for(transfers: collections.abc.Iterable[Transfer], return_when: str, timeout: float | "
                     "None) -> None"),
             "Returns when the condition holds or the timeout has passed. headrace.wait tells which are done.");
  nb::class_<Completions>(module, "Completions", "The order in which transfers finish, for headrace.as_completed.")
      .def(nb::init<nb::handle>(), nb::arg("transfers"),
           nb::sig("def __init__(self, transfers: collections.abc.Iterable[Transfer]) -> None"))
      .def("next", &Completions::next, nb::arg("timeout").none(),
           nb::sig("def next(self, timeout: float | None) -> int"),
           "The position of the transfer that finished next. Raises TimeoutError.");
}

}  // namespace headrace::python
