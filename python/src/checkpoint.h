// SPDX-License-Identifier: Apache-2.0
// Saving and reading checkpoint files, in plain numbers and bytes; headrace/_save.py and _load.py make objects of them.
// Needs the GIL, which is given up while a file is written or read; Ctrl-C ends such a call.
// Memory is named by address: the Python caller keeps it alive and in place until the call returns.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace::python {

namespace nb = nanobind;

void bind_checkpoint(nb::module_& module);

}  // namespace headrace::python
