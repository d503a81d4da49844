// SPDX-License-Identifier: Apache-2.0
// See errors.h. The exception classes live in headrace/_errors.py, where they can be pickled and read.
// Every function needs the GIL.
// Owns nothing.
#include "errors.h"

#include <cstdarg>

namespace headrace::python {

nb::object import_attribute(const char* module, const char* name) { return nb::module_::import_(module).attr(name); }

nb::str text_of(nb::handle object) { return nb::str(object); }

nb::str name_of_type(nb::handle object) {
  const nb::object name = object.type().attr("__name__");
  return text_of(name);
}

nb::object decode_path(const std::string& bytes) {
  PyObject* text = PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  if (text == nullptr) throw nb::python_error();
  return nb::steal(text);
}

nb::object make_exception(const Error& error, nb::handle filename) {
  nb::object name = nb::none();
  if (filename.is_valid()) {
    name = nb::borrow(filename);
  } else if (!error.path.empty()) {
    name = decode_path(error.path);
  }
  const std::string_view code = error_code_name(error.code);
  return import_attribute("headrace._errors", "make_exception")(
      nb::str(code.data(), code.size()), error.errno_value, nb::str(error.operation.c_str()), name, error.offset_bytes,
      error.length_bytes, error.transferred_bytes, decode_path(error.message()));
}

void raise(const Error& error, nb::handle filename) {
  if (error.code == ErrorCode::interrupted && PyErr_Occurred() != nullptr) throw nb::python_error();
  nb::object exception = make_exception(error, filename);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

void refuse(PyObject* type, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyErr_FormatV(type, format, arguments);
  va_end(arguments);
  throw nb::python_error();
}

}  // namespace headrace::python
