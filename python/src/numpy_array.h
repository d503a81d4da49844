// SPDX-License-Identifier: Apache-2.0
// numpy arrays as memory, without importing numpy. They need more than the buffer protocol: that protocol has no word for
// datetime64 or bfloat16, and says nothing of masks.
// Needs the GIL. Nothing owned; Hold keeps the array.
#pragma once

#include <vector>

#include <nanobind/nanobind.h>

#include "memory_argument.h"

namespace headrace::python {

// False as long as nobody has imported numpy.
bool is_numpy_array(nb::handle object) noexcept;

// Appends the array's bytes. A source that is not C-contiguous is copied, its values in row-major order. Refused: arrays
// of Python objects, masked arrays; and as targets read-only ones and those that are not C-contiguous.
void add_numpy_array(nb::handle array, Access access, Hold& hold, std::vector<Span>& spans);

}  // namespace headrace::python
