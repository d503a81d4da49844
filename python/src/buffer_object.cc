// SPDX-License-Identifier: Apache-2.0
// See buffer_object.h.
// Threads as buffer_object.h says.
// Owners as buffer_object.h says.
#include "buffer_object.h"

#include <cerrno>
#include <string>

#include <nanobind/stl/string.h>

#include <headrace/buffer.h>

#include "dlpack.h"
#include "errors.h"
#include "interpreter.h"
#include "options.h"

namespace headrace::python {

namespace {

std::byte nothing;  // what views of an empty buffer point to

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* buffer = nb::inst_ptr<Buffer>(self);
  void* data = buffer->bytes() == 0 ? &nothing : buffer->data();
  return PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(buffer->bytes()), 0, flags);
}

const PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};

void construct(Buffer* self, nb::handle bytes, const std::string& pages, bool lock) {
  const uint64_t size = whole_number("nbytes", bytes);
  BufferOptions options;
  options.pages = parse_pages(pages);
  options.lock = lock ? BufferOptions::Lock::if_allowed : BufferOptions::Lock::never;
  auto buffer = without_gil([&] { return Buffer::create(size, options); });
  if (!buffer) refuse(PyExc_MemoryError, "%s", buffer.error().message().c_str());
  new (self) Buffer(*std::move(buffer));
}

nb::object dlpack(const Buffer& self, nb::handle stream, nb::handle max_version, nb::handle device, nb::handle copy) {
  if (!stream.is_none()) refuse(PyExc_BufferError, "a headrace.Buffer is host memory and takes no stream");
  if (copy.ptr() == Py_True) refuse(PyExc_BufferError, "a headrace.Buffer is exported as it is, never as a copy");
  if (!device.is_none() && nb::cast<int>(nb::int_(nb::object(device[0]))) != 1) {
    refuse(PyExc_BufferError, "a headrace.Buffer is on the host and cannot be exported to device %R", device.ptr());
  }
  const bool versioned = !max_version.is_none() && nb::cast<int>(nb::object(max_version[0])) >= 1;
  return make_dlpack(self, versioned ? DlpackVersion::one : DlpackVersion::legacy);
}

nb::object view_of(nb::handle self) {
  PyObject* view = PyMemoryView_FromObject(self.ptr());
  if (view == nullptr) throw nb::python_error();
  return nb::steal(view);
}

std::string describe(const Buffer& self) {
  return "<headrace.Buffer of " + std::to_string(self.bytes()) + " bytes, " + page_kind_name(self.pages()) +
         " pages, " + (self.locked() ? "locked>" : "not locked>");
}

constexpr const char* kBufferDoc =
    R"(Zero-filled bytes that the disk likes: 2 MiB aligned, on huge pages where the system gives them,
locked where allowed.

``nbytes``: the size. ``pages``: "transparent" (ask for transparent huge pages), "reserved" (pages
of the hugetlb pool; MemoryError when it is empty) or "small". ``lock=False`` leaves the pages
unlocked. Pages are taken when first touched.

One dimension of bytes: memoryview(), numpy.frombuffer(), torch.from_dlpack() and the like see the
memory without a copy, and it is freed when the last of them is gone. For arrays of a shape and
dtype see headrace.torch.empty and headrace.numpy.empty. Raises MemoryError when the memory is not
to be had.)";

}  // namespace

void bind_buffer(nb::module_& module) {
  nb::class_<Buffer>(module, "Buffer", kBufferDoc, nb::type_slots(buffer_slots), nb::is_weak_referenceable(),
                     nb::is_final())
      .def("__init__", &construct, nb::arg("nbytes").none(), nb::kw_only(), nb::arg("pages") = "transparent",
           nb::arg("lock") = true,
           nb::sig("def __init__(self, nbytes: int, *, pages: headrace._types.Pages = 'transparent', lock: bool = "
                   "True) -> None"))
      .def_prop_ro(
          "nbytes", [](const Buffer& self) { return self.bytes(); }, "The size in bytes.")
      .def_prop_ro(
          "address", [](const Buffer& self) { return reinterpret_cast<uintptr_t>(self.data()); },
          "The address of the first byte.")
      .def_prop_ro("locked", &Buffer::locked, "True when its pages cannot be swapped out.")
      .def_prop_ro(
          "pages", [](const Buffer& self) { return page_kind_name(self.pages()); },
          "\"transparent\", \"reserved\" or \"small\": what was asked for and granted.")
      .def_prop_ro(
          "huge_bytes", [](const Buffer& self) { return without_gil([&] { return self.huge_bytes(); }); },
          "Bytes that sit on huge pages now, as the kernel's page tables say.")
      .def("__len__", [](const Buffer& self) { return self.bytes(); })
      .def(
          "__getitem__",
          [](nb::handle_t<Buffer> self, int64_t key) { return nb::object(view_of(self)[nb::int_(key)]); },
          nb::arg("key"), nb::sig("def __getitem__(self, key: int) -> int"))
      .def(
          "__getitem__", [](nb::handle_t<Buffer> self, const nb::slice& key) { return nb::object(view_of(self)[key]); },
          nb::arg("key"), nb::sig("def __getitem__(self, key: slice) -> memoryview"))
      .def(
          "__setitem__",
          [](nb::handle_t<Buffer> self, nb::handle key, nb::handle value) { view_of(self)[key] = value; },
          nb::sig("def __setitem__(self, key: int | slice, value: typing.Any) -> None"))
      .def("__dlpack__", &dlpack, nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
           nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"))
      .def(
          "__dlpack_device__", [](const Buffer&) { return nb::make_tuple(1, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def("__repr__", &describe);
}

}  // namespace headrace::python
