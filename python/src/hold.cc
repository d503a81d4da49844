// SPDX-License-Identifier: Apache-2.0
// See hold.h. References are always moved out before they are dropped, because dropping one may run any Python code.
// Needs the GIL.
// Owns what hold.h says.
#include "hold.h"

#include <utility>

#include "interpreter.h"
#include "torch_tensor.h"

namespace headrace::python {

Py_buffer& Hold::keep_buffer(nb::handle exporter, int flags) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(exporter.ptr(), view.get(), flags) != 0) throw nb::python_error();
  buffers_.push_back(std::move(view));
  return *buffers_.back();
}

void Hold::drop_last_buffer() noexcept {
  const std::unique_ptr<Py_buffer> view = std::move(buffers_.back());
  buffers_.pop_back();
  PyBuffer_Release(view.get());
}

void Hold::start(const Transfer& transfer, bool is_read, std::shared_ptr<HoldList> list) {
  transfer_ = transfer;
  is_read_ = is_read;
  list_ = std::move(list);
  place_ = list_->insert(list_->end(), this);
  bump_versions();
}

void Hold::finish() {
  bump_versions();
  release();
}

void Hold::unlink() noexcept {
  if (list_ == nullptr) return;
  list_->erase(place_);
  list_.reset();
}

void Hold::release() noexcept {
  unlink();
  const nb::error_scope keep_the_error_in_flight;
  const auto owners = std::exchange(owners_, {});
  const auto buffers = std::exchange(buffers_, {});
  const auto tensors = std::exchange(target_tensors_, {});
  transfer_ = Transfer();
  for (const auto& view : buffers)
    PyBuffer_Release(view.get());
}

void Hold::bump_versions() noexcept {
  for (const nb::object& tensor : target_tensors_)
    bump_version(tensor);
}

int Hold::traverse(visitproc visit, void* arg) const {
  for (const nb::object& owner : owners_)
    Py_VISIT(owner.ptr());
  for (const nb::object& tensor : target_tensors_)
    Py_VISIT(tensor.ptr());
  for (const auto& view : buffers_)
    Py_VISIT(view->obj);
  return 0;
}

void hand_over(std::unique_ptr<Hold> hold) noexcept {
  if (hold == nullptr) return;
  const auto let_go = [](void* pointer) {
    const PythonEntry python;
    if (!python) return;  // the interpreter is gone, and with it the references: left to the end of the process
    delete static_cast<Hold*>(pointer);
  };
  const Transfer transfer = hold->transfer();
  transfer.keep_alive(std::shared_ptr<void>(static_cast<void*>(hold.release()), let_go));
}

void release_finished(HoldList& list) {
  while (!list.empty() && list.front()->transfer().done())
    list.front()->finish();
}

void abort_reads(const HoldList& list) noexcept {
  for (const Hold* hold : list) {
    if (hold->is_read()) Transfer(hold->transfer()).abort();
  }
}

}  // namespace headrace::python
