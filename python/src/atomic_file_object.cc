// SPDX-License-Identifier: Apache-2.0
// See atomic_file_object.h.
// Threads as atomic_file_object.h says.
// Owners as atomic_file_object.h says.
#include "atomic_file_object.h"

#include <algorithm>
#include <utility>

#include <nanobind/stl/string.h>

#include "errors.h"
#include "interpreter.h"
#include "options.h"

namespace headrace::python {

namespace {

bool wait_for_all(const std::vector<Transfer>& writes, const Deadline& deadline) {
  return wait_in_slices(deadline,
                        [&](Nanoseconds slice) { return wait(writes, WaitFor::all, slice) == writes.size(); });
}

void leave(AtomicFileObject& self, nb::handle exception_type, nb::handle, nb::handle) {
  if (exception_type.is_none()) return self.commit();
  self.discard();
}

std::string describe(const AtomicFileObject& self) {
  return "<headrace.AtomicFile " + nb::cast<std::string>(nb::object(nb::repr(self.path()))) + " of " +
         std::to_string(self.size_bytes()) + " bytes>";
}

constexpr const char* kAtomicFileDoc =
    R"(A file that appears whole or not at all; made by Handle.replace(path, size=...).

Pass it as the file of writes. Leaving its ``with`` block waits for them, then sets the exact size,
syncs, renames over ``path`` and syncs the folder; an exception in the block, or a write that
failed, removes the temporary file and leaves the old one. Writes beyond ``size`` raise ValueError.
Ranges that were never written hold zeros.)";

}  // namespace

AtomicFileObject::AtomicFileObject(AtomicFile file, nb::object path, uint64_t size_bytes)
    : atomic_(std::make_shared<AtomicFile>(std::move(file))),
      path_(std::move(path)),
      size_bytes_(size_bytes),
      generation_(fork_generation()) {}

AtomicFileObject::AtomicFileObject(AtomicFileObject&& other) noexcept
    : atomic_(std::exchange(other.atomic_, nullptr)),
      path_(std::move(other.path_)),
      size_bytes_(other.size_bytes_),
      generation_(other.generation_),
      writes_(std::move(other.writes_)) {}

AtomicFileObject::~AtomicFileObject() {
  if (!atomic_) return;
  if (generation_ != fork_generation()) {
    // The temporary file is the parent's to remove: a forked child leaves it alone and gives the object up.
    static_cast<void>(new std::shared_ptr<AtomicFile>(std::move(atomic_)));
    return;
  }
  Parts parts = take();
  remove(parts);
}

const File& AtomicFileObject::file() const {
  if (!atomic_ || generation_ != fork_generation()) {
    const nb::object closed = import_attribute("headrace._errors", "ClosedError");
    refuse(closed.ptr(), atomic_ ? "this AtomicFile belongs to the process that forked this one"
                                 : "this AtomicFile was committed or discarded, or another thread does it now");
  }
  return atomic_->file();
}

std::string AtomicFileObject::temporary_path() const {
  static_cast<void>(file());
  return atomic_->temporary_path();
}

void AtomicFileObject::check_range(uint64_t offset_bytes, uint64_t bytes) const {
  if (offset_bytes <= size_bytes_ && bytes <= size_bytes_ - offset_bytes) return;
  const uint64_t end_bytes = offset_bytes + bytes;
  refuse(PyExc_ValueError, "bytes %llu to %llu lie outside the %llu bytes of this AtomicFile",
         static_cast<unsigned long long>(offset_bytes), static_cast<unsigned long long>(end_bytes),
         static_cast<unsigned long long>(size_bytes_));
}

void AtomicFileObject::resize(uint64_t size_bytes) {
  static_cast<void>(file());
  const std::shared_ptr<AtomicFile> atomic = atomic_;
  const Status status = without_gil([&] { return atomic->resize(size_bytes); });
  if (!status) raise(status.error(), path_);
  size_bytes_ = size_bytes;
}

void AtomicFileObject::add_write(const Transfer& write) {
  if (writes_.size() >= writes_looked_at_) {
    std::erase_if(writes_, [](const Transfer& one) { return one.done() && one.result().has_value(); });
    writes_looked_at_ = std::max<size_t>(64, 2 * writes_.size());
  }
  writes_.push_back(write);
}

AtomicFileObject::Parts AtomicFileObject::take() {
  return {.atomic = std::exchange(atomic_, nullptr), .writes = std::exchange(writes_, {})};
}

void AtomicFileObject::remove(Parts& parts) noexcept {
  without_gil([&] {
    parts.atomic->discard();
    parts.atomic.reset();
  });
}

void AtomicFileObject::commit() {
  static_cast<void>(file());
  Parts parts = take();
  try {
    wait_for_all(parts.writes, Deadline(std::nullopt));
  } catch (nb::python_error&) {
    for (Transfer& write : parts.writes)
      write.abort();
    remove(parts);
    throw;
  }
  std::optional<Error> failure;
  for (const Transfer& write : parts.writes) {
    const auto result = write.result();
    if (!result && !failure) failure = result.error();
  }
  if (failure) {
    remove(parts);
    raise(*failure, path_);
  }
  const Status status = without_gil([&] { return parts.atomic->commit(); });
  remove(parts);
  if (!status) raise(status.error(), path_);
}

void AtomicFileObject::discard() {
  if (!atomic_) return;
  static_cast<void>(file());
  Parts parts = take();
  for (Transfer& write : parts.writes)
    write.abort();
  remove(parts);
  wait_for_all(parts.writes, Deadline(std::nullopt));
  // Asked for, so that closing the handle does not report writes that were thrown away on purpose.
  for (const Transfer& write : parts.writes)
    static_cast<void>(write.result());
}

void bind_atomic_file(nb::module_& module) {
  nb::class_<AtomicFileObject>(module, "AtomicFile", kAtomicFileDoc, nb::is_weak_referenceable())
      .def_prop_ro(
          "path", [](const AtomicFileObject& self) { return self.path(); },
          nb::sig("def path(self) -> headrace._types.Path"), "The final name, as it was given.")
      .def_prop_ro("size", &AtomicFileObject::size_bytes, "The exact final length in bytes.")
      .def_prop_ro(
          "temporary_path", [](const AtomicFileObject& self) { return decode_path(self.temporary_path()); },
          nb::sig("def temporary_path(self) -> str"), "The name the bytes are written under.")
      .def(
          "resize", [](AtomicFileObject& self, nb::handle size) { self.resize(whole_number("size", size)); },
          nb::arg("size").none(), nb::sig("def resize(self, size: int) -> None"),
          "Changes the exact final length. Space for a larger one is taken now: a full disk is reported here, and the "
          "old\nlength stays. What was written beyond a smaller one is cut off.")
      .def("commit", &AtomicFileObject::commit,
           "Waits for the writes into this file, then makes it appear under its final name. What leaving the block "
           "does.")
      .def("discard", &AtomicFileObject::discard,
           "Aborts the writes into this file and removes it. What leaving the block by an exception does. Safe to call "
           "twice.")
      .def(
          "__enter__", [](nb::handle_t<AtomicFileObject> self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> AtomicFile"))
      .def("__exit__", &leave, nb::arg("exc_type").none(), nb::arg("exc").none(), nb::arg("traceback").none(),
           nb::sig("def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, "
                   "traceback: types.TracebackType | None) -> None"))
      .def("__repr__", &describe);
}

}  // namespace headrace::python
