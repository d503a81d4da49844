// SPDX-License-Identifier: Apache-2.0
// See file_object.h.
// Needs the GIL.
// Owners as file_object.h says.
#include "file_object.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "atomic_file_object.h"
#include "errors.h"
#include "interpreter.h"
#include "options.h"

namespace headrace::python {

namespace {

File open_path(nb::handle path, FileMode mode) {
  const std::string bytes = path_bytes(path);
  auto file = without_gil([&] { return File::open(bytes, mode); });
  if (!file) raise(file.error(), path);
  return *std::move(file);
}

File open_descriptor(nb::handle descriptor) {
  int overflow = 0;
  const nb::object index = nb::steal(PyNumber_Index(descriptor.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || number < 0 || number > INT32_MAX) {
    refuse(PyExc_ValueError, "%R is no file descriptor", descriptor.ptr());
  }
  auto file = without_gil([&] { return File::from_descriptor(static_cast<int>(number)); });
  if (!file) raise(file.error(), descriptor);
  return *std::move(file);
}

bool is_descriptor(nb::handle file) { return PyBool_Check(file.ptr()) == 0 && PyIndex_Check(file.ptr()) != 0; }

void construct(FileObject* self, nb::handle path, const std::optional<std::string>& mode) {
  if (is_descriptor(path)) {
    if (mode) refuse(PyExc_ValueError, "a descriptor was opened by someone else: it takes no mode");
    new (self) FileObject(open_descriptor(path), nb::borrow(path), "descriptor");
    return;
  }
  const std::string chosen = mode.value_or("read");
  const FileMode file_mode = parse_file_mode(chosen);
  new (self) FileObject(open_path(path, file_mode), nb::borrow(path), chosen);
}

std::string describe(const FileObject& self) {
  const nb::object name = nb::repr(self.name());
  return "<headrace.File " + nb::cast<std::string>(name) +
         (self.closed() ? " closed>" : " mode='" + self.mode() + "'>");
}

uint64_t size_of(const FileObject& self) {
  const File file = self.file();
  const auto size = without_gil([&] { return file.size_bytes(); });
  if (!size) raise(size.error(), self.name());
  return *size;
}

nb::tuple direct_alignment(const FileObject& self) {
  const File file = self.file();
  const auto [memory, offset] = without_gil(
      [&] { return std::pair(file.direct_memory_alignment_bytes(), file.direct_offset_alignment_bytes()); });
  return nb::make_tuple(memory, offset);
}

constexpr const char* kFileDoc =
    R"(An open file that many requests share: opened once, its alignments asked of the system once.

``path``: str, bytes or PathLike, or an int descriptor, which is duplicated and whose flags and
position stay as they are (a writable descriptor with O_APPEND is refused). ``mode``, for paths:
"read" (must exist; the default), "update" (created if missing, never truncated), "create" (must not
exist), "truncate" (created if missing, cut to zero length now).

Any thread may use it. ``close()`` drops this object's share; transfers under way keep theirs.
Raises TransferError: FileNotFoundError, PermissionError, IsADirectoryError and so on are among its
subclasses.)";

}  // namespace

const File& FileObject::file() const {
  if (closed()) refuse(import_attribute("headrace._errors", "ClosedError").ptr(), "this headrace.File is closed");
  return file_;
}

void FileObject::close() {
  const File last_share = std::exchange(file_, File());
  (void)last_share;
}

std::string path_bytes(nb::handle path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), static_cast<void*>(&bytes)) == 0) throw nb::python_error();
  const nb::object owner = nb::steal(bytes);
  return {PyBytes_AsString(bytes), static_cast<size_t>(PyBytes_Size(bytes))};
}

bool is_path(nb::handle file) {
  return !nb::isinstance<FileObject>(file) && !nb::isinstance<AtomicFileObject>(file) && !is_descriptor(file);
}

FileArgument open_file_argument(nb::handle file, FileMode mode, bool mode_given) {
  if (is_path(file)) return {open_path(file, mode), nb::borrow(file)};
  if (mode_given) refuse(PyExc_ValueError, "mode is for paths: this file is already open");
  if (is_descriptor(file)) return {open_descriptor(file), nb::borrow(file)};
  if (nb::isinstance<FileObject>(file)) {
    const auto& object = nb::cast<const FileObject&>(file);
    return {object.file(), object.name()};
  }
  auto& atomic = nb::cast<AtomicFileObject&>(file);
  return {atomic.file(), atomic.path(), &atomic};
}

void bind_file(nb::module_& module) {
  nb::class_<FileObject>(module, "File", kFileDoc, nb::is_weak_referenceable())
      .def("__init__", &construct, nb::arg("path").none(), nb::arg("mode") = nb::none(),
           nb::sig("def __init__(self, path: headrace._types.Path | int, mode: headrace._types.FileMode | None = None) "
                   "-> None"))
      .def_prop_ro(
          "name", [](const FileObject& self) { return self.name(); },
          nb::sig("def name(self) -> headrace._types.Path | int"), "What the file was opened by.")
      .def_prop_ro(
          "mode", [](const FileObject& self) { return self.mode(); },
          "The mode it was opened with; \"descriptor\" for a descriptor.")
      .def_prop_ro("closed", &FileObject::closed, "True after close().")
      .def_prop_ro("size", &size_of, "The length now, in bytes; a block device's capacity.")
      .def_prop_ro(
          "direct_alignment", &direct_alignment, nb::sig("def direct_alignment(self) -> tuple[int, int]"),
          "Alignment that direct I/O needs of memory, and of offset and length, in bytes; zeros where it is refused.")
      .def("close", &FileObject::close, "Drops this object's share of the file. Safe to call twice.")
      .def(
          "__enter__", [](nb::handle_t<FileObject> self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> File"))
      .def(
          "__exit__", [](FileObject& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *exc_info: object) -> None"))
      .def("__repr__", &describe);
}

}  // namespace headrace::python
