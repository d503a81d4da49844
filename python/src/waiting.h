// SPDX-License-Identifier: Apache-2.0
// What headrace.wait and headrace.as_completed are made of.
// Needs the GIL, which is released in every wait; the queue of finished transfers is filled by the dispatcher thread, without it.
// The queue is shared by its Python object and the transfers that were not done yet.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace::python {

namespace nb = nanobind;

void bind_waiting(nb::module_& module);

}  // namespace headrace::python
