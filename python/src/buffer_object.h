// SPDX-License-Identifier: Apache-2.0
// headrace.Buffer: bytes on huge pages, with the buffer protocol and DLPack.
// Needs the GIL.
// Views of the buffer protocol own the Python object; DLPack tensors own a share of the C++ Buffer, and need no GIL to drop it.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace::python {

namespace nb = nanobind;

void bind_buffer(nb::module_& module);

}  // namespace headrace::python
