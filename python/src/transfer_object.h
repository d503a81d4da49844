// SPDX-License-Identifier: Apache-2.0
// headrace.Transfer: the future of one request, as concurrent.futures spells it.
// Needs the GIL; it is released in every wait.
// Owns the Hold of its memory until the transfer was seen to be done; see hold.h for what happens when it dies first.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <nanobind/nanobind.h>

#include <headrace/transfer.h>

#include "hold.h"
#include "interpreter.h"

namespace headrace::python {

// What was asked for, for repr and exceptions.
struct Asked {
  const char* operation = "";
  nb::object filename;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

class TransferObject {
 public:
  TransferObject(Transfer transfer, std::unique_ptr<Hold> hold, Asked asked);
  ~TransferObject();
  TransferObject(TransferObject&&) noexcept = default;
  TransferObject& operator=(TransferObject&&) = delete;

  [[nodiscard]] const Transfer& transfer() const noexcept { return transfer_; }
  [[nodiscard]] const Asked& asked() const noexcept { return asked_; }

  // True when done; the memory is let go of then.
  bool done();
  // Waits until done. Raises TimeoutError, what a signal handler raises, or ClosedError in a forked child.
  void wait_until_done(std::optional<double> timeout_s);
  // Raises ClosedError where nobody will ever finish this transfer: in a child forked while it ran.
  void check_process() const;
  // The exception of a done transfer, or None.
  nb::object exception_or_none();
  // Bytes moved by a done transfer; raises its exception.
  uint64_t result_or_raise();
  bool cancel();
  void abort();

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  Transfer transfer_;
  std::unique_ptr<Hold> hold_;
  Asked asked_;
  uint32_t generation_;
};

void bind_transfer(nb::module_& module);

}  // namespace headrace::python
