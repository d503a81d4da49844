// SPDX-License-Identifier: Apache-2.0
// See transfer_object.h.
// Threads as transfer_object.h says.
// Owners as transfer_object.h says.
#include "transfer_object.h"

#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "callback.h"
#include "errors.h"
#include "route.h"

namespace headrace::python {

TransferObject::TransferObject(Transfer transfer, std::unique_ptr<Hold> hold, Asked asked)
    : transfer_(std::move(transfer)),
      hold_(std::move(hold)),
      asked_(std::move(asked)),
      generation_(fork_generation()) {}

TransferObject::~TransferObject() {
  if (generation_ != fork_generation()) {
    // The child of a fork: the kernel works on the parent's memory, so references can go; the state may hold a lock
    // that some thread of the parent had, so it stays.
    static_cast<void>(new Transfer(std::move(transfer_)));
    if (hold_ != nullptr) hold_->release();
    return;
  }
  if (hold_ == nullptr || done()) return;
  if (interpreter_is_leaving()) {
    static_cast<void>(hold_.release());  // on purpose: a stuck device may still use the memory
    return;
  }
  hand_over(std::move(hold_));
}

bool TransferObject::done() {
  if (!transfer_.done()) return false;
  if (hold_ != nullptr) {
    const std::unique_ptr<Hold> hold = std::move(hold_);
    hold->finish();
  }
  return true;
}

void TransferObject::check_process() const {
  if (generation_ == fork_generation() || transfer_.done()) return;
  refuse(import_attribute("headrace._errors", "ClosedError").ptr(),
         "this transfer runs in the process that forked this one: only that process can wait for it");
}

void TransferObject::wait_until_done(std::optional<double> timeout_s) {
  const Deadline deadline(timeout_s);
  if (done()) return;
  check_process();
  const Transfer transfer = transfer_;
  wait_in_slices(deadline, [&](Nanoseconds slice) { return transfer.wait_for(slice); });
  if (done()) return;
  refuse(PyExc_TimeoutError, "%s of %R is not done yet; it goes on", asked_.operation, asked_.filename.ptr());
}

nb::object TransferObject::exception_or_none() {
  const auto result = transfer_.result();
  return result ? nb::none() : make_exception(result.error(), asked_.filename);
}

uint64_t TransferObject::result_or_raise() {
  const auto result = transfer_.result();
  if (!result) raise(result.error(), asked_.filename);
  return *result;
}

bool TransferObject::cancel() {
  check_process();
  return transfer_.cancel();
}

void TransferObject::abort() {
  check_process();
  transfer_.abort();
}

// While the transfer runs its memory is held from outside Python as well, and the collector must not take it apart.
int TransferObject::traverse(visitproc visit, void* arg) const {
  if (hold_ == nullptr || !transfer_.done()) return 0;
  return hold_->traverse(visit, arg);
}

void TransferObject::clear() {
  if (hold_ != nullptr && transfer_.done()) hold_->release();
}

namespace {

int traverse_slot(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<TransferObject>(self)->traverse(visit, arg) : 0;
}

int clear_slot(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<TransferObject>(self)->clear();
  return 0;
}

const PyType_Slot transfer_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse_slot)},
                                      {Py_tp_clear, reinterpret_cast<void*>(&clear_slot)},
                                      {0, nullptr}};

uint64_t result(TransferObject& self, std::optional<double> timeout_s) {
  self.wait_until_done(timeout_s);
  return self.result_or_raise();
}

// As in concurrent.futures: a cancelled transfer has no exception to return, asking for one raises.
nb::object exception(TransferObject& self, std::optional<double> timeout_s) {
  self.wait_until_done(timeout_s);
  if (self.transfer().cancelled()) static_cast<void>(self.result_or_raise());
  return self.exception_or_none();
}

nb::object route(const TransferObject& self) {
  const auto found = self.transfer().route();
  return found ? nb::cast(RouteObject(*found)) : nb::none();
}

const char* state_name(TransferObject& self) {
  if (self.transfer().cancelled()) return "cancelled";
  if (self.done()) return "done";
  return self.transfer().running() ? "running" : "pending";
}

std::string describe(TransferObject& self) {
  const Asked& asked = self.asked();
  return std::string("<headrace.Transfer ") + state_name(self) + ": " + asked.operation + " of " +
         std::to_string(asked.length_bytes) + " bytes at " + std::to_string(asked.offset_bytes) + " of " +
         nb::cast<std::string>(nb::object(nb::repr(asked.filename))) + ">";
}

void add_done_callback(nb::handle_t<TransferObject> self, nb::object function) {
  if (PyCallable_Check(function.ptr()) == 0) refuse(PyExc_TypeError, "%R is not callable", function.ptr());
  auto& object = nb::cast<TransferObject&>(self);
  object.check_process();
  call_when_done(object.transfer(), nb::borrow(self), std::move(function));
}

nb::object await(nb::handle_t<TransferObject> self) {
  return import_attribute("headrace._futures", "await_transfer")(self);
}

constexpr const char* kTransferDoc =
    R"(The future of one read or write, with the methods of concurrent.futures.Future; it can also be
awaited.

Any thread may use it. It keeps the memory of its request, and the object that owns it, until it is
done; dropping it neither stops the work nor frees that memory. It is done only when the kernel
holds nothing of it any more.)";

}  // namespace

void bind_transfer(nb::module_& module) {
  nb::class_<TransferObject>(module, "Transfer", kTransferDoc, nb::type_slots(transfer_slots),
                             nb::is_weak_referenceable(), nb::is_final())
      .def("result", &result, nb::arg("timeout") = nb::none(),
           nb::sig("def result(self, timeout: float | None = None) -> int"),
           R"(Waits until done, at most ``timeout`` seconds, and returns the number of bytes moved.

Raises TransferError or one of its subclasses when the request failed (EndOfFileError when the file
ended early and ``partial`` was not set), TimeoutError when time ran out (the work goes on),
concurrent.futures.CancelledError after cancel().)")
      .def("exception", &exception, nb::arg("timeout") = nb::none(),
           nb::sig("def exception(self, timeout: float | None = None) -> headrace._errors.TransferError | None"),
           "Waits as result() does and returns the exception that it would raise, or None.")
      .def("done", &TransferObject::done, "True when nothing of it is left to do, however it ended.")
      .def(
          "running", [](const TransferObject& self) { return self.transfer().running(); },
          "True while some block of it was sent and it is not done.")
      .def("cancel", &TransferObject::cancel,
           "Prevents it, if nothing of it was sent yet: True then. False means that it runs or is done.")
      .def(
          "cancelled", [](const TransferObject& self) { return self.transfer().cancelled(); },
          "True after a cancel() that took effect.")
      .def("abort", &TransferObject::abort,
           "Stops what was not sent yet. result() raises AbortedError once the rest has come back.")
      .def("add_done_callback", &add_done_callback, nb::arg("fn").none(),
           nb::sig("def add_done_callback(self, fn: collections.abc.Callable[[Transfer], object]) -> None"),
           R"(Calls ``fn(transfer)`` on the library's dispatcher thread when the transfer is done, soon if it is
already.

Callbacks of all handles share that thread: they should be short. What one raises goes to the logger
"headrace".)")
      .def_prop_ro("route", &route, nb::sig("def route(self) -> Route | None"),
                   "None until done; then which way the bytes went, and why not a faster one.")
      .def_prop_ro(
          "operation", [](const TransferObject& self) { return self.asked().operation; }, "\"read\" or \"write\".")
      .def_prop_ro(
          "filename", [](const TransferObject& self) { return self.asked().filename; },
          nb::sig("def filename(self) -> headrace._types.Path | int"), "The file, as the request named it.")
      .def_prop_ro(
          "offset", [](const TransferObject& self) { return self.asked().offset_bytes; },
          "The first byte of the range in the file.")
      .def_prop_ro(
          "length", [](const TransferObject& self) { return self.asked().length_bytes; },
          "The number of bytes asked for.")
      .def("__await__", &await, nb::sig("def __await__(self) -> collections.abc.Generator[object, None, int]"))
      .def("__repr__", &describe);
}

}  // namespace headrace::python
