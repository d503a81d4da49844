// SPDX-License-Identifier: Apache-2.0
// See memory_argument.h: which kind of object it is, and the buffer protocol.
// Needs the GIL.
// Owns nothing; what must stay alive goes into the Hold.
#include "memory_argument.h"

#include <algorithm>
#include <cstring>

#include "dlpack.h"
#include "errors.h"
#include "numpy_array.h"
#include "torch_tensor.h"

namespace headrace::python {

namespace {

// Python references in the bytes would be written as numbers, and read back as wild pointers. Formats are those of the
// `struct` module with PEP 3118's additions; a name between colons may hold any letter.
bool holds_references(const char* format) noexcept {
  if (format == nullptr) return false;
  bool in_name = false;
  for (const char* c = format; *c != '\0'; ++c) {
    if (*c == ':') in_name = !in_name;
    if (*c == 'O' && !in_name) return true;
  }
  return false;
}

void append_buffer(const Py_buffer& view, std::vector<Span>& spans) {
  if (view.len == 0) return;
  spans.push_back({static_cast<std::byte*>(view.buf), static_cast<uint64_t>(view.len)});
}

[[noreturn]] void refuse_references(nb::handle exporter) {
  const nb::str type = name_of_type(exporter);
  refuse(PyExc_ValueError, "%U holds Python objects, whose bytes mean nothing in a file", type.ptr());
}

[[noreturn]] void refuse_target(nb::handle exporter, const char* why) {
  const nb::str type = name_of_type(exporter);
  refuse(PyExc_ValueError, "%U is %s and cannot be a read target", type.ptr(), why);
}

void add_target_buffer(nb::handle exporter, Hold& hold, std::vector<Span>& spans) {
  // Asked without the wish to write, so that a refusal can say which it was.
  const Py_buffer& shape = hold.keep_buffer(exporter, PyBUF_FULL_RO);
  if (holds_references(shape.format)) refuse_references(exporter);
  if (shape.readonly != 0) refuse_target(exporter, "read-only");
  if (PyBuffer_IsContiguous(&shape, 'C') == 0) refuse_target(exporter, "not C-contiguous");
  hold.drop_last_buffer();
  append_buffer(hold.keep_buffer(exporter, PyBUF_CONTIG), spans);
}

void add_source_buffer(nb::handle exporter, Hold& hold, std::vector<Span>& spans) {
  Py_buffer& view = hold.keep_buffer(exporter, PyBUF_FULL_RO);  // CPython 3.10 wants it mutable
  if (holds_references(view.format)) refuse_references(exporter);
  if (PyBuffer_IsContiguous(&view, 'C') != 0) return append_buffer(view, spans);

  PyObject* copy = PyBytes_FromStringAndSize(nullptr, view.len);
  if (copy == nullptr) throw nb::python_error();
  nb::object owner = nb::steal(copy);
  char* bytes = PyBytes_AsString(copy);
  if (PyBuffer_ToContiguous(bytes, &view, view.len, 'C') != 0) throw nb::python_error();
  hold.drop_last_buffer();
  const auto length = static_cast<uint64_t>(PyBytes_Size(copy));
  if (length != 0) spans.push_back({reinterpret_cast<std::byte*>(bytes), length});
  hold.keep(std::move(owner));
}

void add_one(nb::handle argument, Access access, Hold& hold, std::vector<Span>& spans) {
  if (is_torch_tensor(argument)) return add_torch_tensor(argument, access, hold, spans);
  if (is_numpy_array(argument)) return add_numpy_array(argument, access, hold, spans);
  if (PyObject_CheckBuffer(argument.ptr()) != 0) {
    return access == Access::target ? add_target_buffer(argument, hold, spans)
                                    : add_source_buffer(argument, hold, spans);
  }
  if (nb::hasattr(argument, "__dlpack__")) return add_dlpack(argument, access, hold, spans);
  const nb::str type = name_of_type(argument);
  refuse(
      PyExc_TypeError,
      "%U cannot be used %s: a torch tensor, numpy array, object with a buffer or DLPack, or a list of these is needed",
      type.ptr(), access_name(access));
}

}  // namespace

const char* access_name(Access access) noexcept {
  return access == Access::target ? "as a read target" : "as a write source";
}

void add_memory(nb::handle argument, Access access, Hold& hold, std::vector<Span>& spans) {
  const bool several = PyList_Check(argument.ptr()) != 0 || PyTuple_Check(argument.ptr()) != 0;
  if (!several) return add_one(argument, access, hold, spans);
  const size_t count = nb::len(argument);
  for (size_t i = 0; i < count; ++i)
    add_one(nb::object(argument[i]), access, hold, spans);
}

void refuse_overlap(std::span<const Span> spans) {
  if (spans.size() < 2) return;
  std::vector<Span> sorted(spans.begin(), spans.end());
  std::ranges::sort(sorted, {}, &Span::data);
  const auto overlaps = [](const Span& a, const Span& b) { return a.data + a.bytes > b.data; };
  if (std::ranges::adjacent_find(sorted, overlaps) != sorted.end()) {
    refuse(PyExc_ValueError,
           "two read targets overlap in memory: what they would hold depends on which read ends last");
  }
}

uint64_t total_bytes(std::span<const Span> spans) noexcept {
  uint64_t total = 0;
  for (const Span& span : spans)
    total += span.bytes;
  return total;
}

}  // namespace headrace::python
