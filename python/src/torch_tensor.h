// SPDX-License-Identifier: Apache-2.0
// torch tensors as memory, without importing or linking torch: what is asked of a tensor, it is asked in Python.
// Needs the GIL.
// Nothing owned; Hold keeps the tensor and its storage.
#pragma once

#include <vector>

#include <nanobind/nanobind.h>

#include "memory_argument.h"

namespace headrace::python {

// False as long as nobody has imported torch.
bool is_torch_tensor(nb::handle object) noexcept;

// Appends the tensor's bytes, or refuses by name what has none here: meta, sparse, nested, on a GPU, without storage;
// and as a target what cannot be filled in place. A source that is not contiguous is copied, its values in row-major order.
void add_torch_tensor(nb::handle tensor, Access access, Hold& hold, std::vector<Span>& spans);

// Tells autograd that the tensor's values changed. Errors are dropped: an inference tensor keeps no version.
void bump_version(nb::handle tensor) noexcept;

}  // namespace headrace::python
