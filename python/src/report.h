// SPDX-License-Identifier: Apache-2.0
// headrace.report's part in C++.
// Needs the GIL; it is released while folders are tried.
// Owns nothing.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace::python {

namespace nb = nanobind;

void bind_report(nb::module_& module);

}  // namespace headrace::python
