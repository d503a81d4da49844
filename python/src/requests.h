// SPDX-License-Identifier: Apache-2.0
// The methods of headrace.Handle that start transfers: read, write, read_many, write_many, replace.
// Needs the GIL; it is released while files are opened and requests are handed over.
// Each Transfer that comes back owns the Hold of its memory.
#pragma once

#include <nanobind/nanobind.h>

#include "handle_object.h"

namespace headrace::python {

void bind_requests(nb::class_<HandleObject>& handle);

}  // namespace headrace::python
