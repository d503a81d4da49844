// SPDX-License-Identifier: Apache-2.0
// From headrace::Error to the exceptions of headrace._errors, and refusals of arguments.
// Every function needs the GIL. The exception owns copies of all it names.
// The caller's own file argument becomes `filename`, in the type in which it was given.
#pragma once

#include <string>

#include <nanobind/nanobind.h>

#include <headrace/error.h>

namespace headrace::python {

namespace nb = nanobind;

// The exception for `error`, not raised. `filename` may be a null handle: then the error's own path is used, as str.
nb::object make_exception(const Error& error, nb::handle filename);
// A submission that was interrupted raises what the signal handler raised instead (KeyboardInterrupt).
[[noreturn]] void raise(const Error& error, nb::handle filename);

// Raises `type` with a message in PyErr_Format's language.
[[noreturn]] void refuse(PyObject* type, const char* format, ...);

// Bytes of the file system to str, as os.fsdecode does.
nb::object decode_path(const std::string& bytes);

// str(object), and the name of its type.
nb::str text_of(nb::handle object);
nb::str name_of_type(nb::handle object);

// An attribute of a module of this package or the standard library, imported now.
nb::object import_attribute(const char* module, const char* name);

}  // namespace headrace::python
