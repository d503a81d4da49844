// SPDX-License-Identifier: Apache-2.0
// headrace.Handle: accepts requests in Python's terms and knows which of them still hold Python memory.
// Needs the GIL; it is released in every call into the library that can block.
// Owns the C++ handle; shares the list of holds with the holds themselves, which may outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <nanobind/nanobind.h>

#include <headrace/handle.h>

#include "hold.h"
#include "interpreter.h"

namespace headrace::python {

class HandleObject {
 public:
  explicit HandleObject(Handle handle);
  // What `del` does: aborts reads, finishes writes, closes. A failure that nobody is left to hear of is logged.
  ~HandleObject();
  HandleObject(const HandleObject&) = delete;
  HandleObject& operator=(const HandleObject&) = delete;

  // Raises ClosedError after close(), in a forked child, and while the interpreter exits.
  Handle& open_handle();
  // Raises ClosedError in a forked child, where a lock of the handle may be held for ever.
  const Handle& handle_of_this_process() const;
  [[nodiscard]] bool belongs_to_parent() const noexcept { return generation_ != fork_generation(); }
  [[nodiscard]] const Handle& handle() const noexcept { return handle_; }
  [[nodiscard]] const std::shared_ptr<HoldList>& holds() const noexcept { return holds_; }

  void close(std::optional<double> timeout_s);
  // Leaving a `with` block. `exception` is the one in flight, or none; it is never masked.
  void leave(nb::handle exception);

 private:
  friend void close_all_handles();
  bool close_unheard(Nanoseconds patience) noexcept;

  Handle handle_;
  std::shared_ptr<HoldList> holds_ = std::make_shared<HoldList>();
  uint32_t generation_ = fork_generation();
  bool given_up_ = false;  // a device did not answer: the C++ handle stays for ever
};

// For the interpreter's exit: closes every handle of this process, in bounded time.
void close_all_handles();

void bind_handle(nb::module_& module);

}  // namespace headrace::python
