// SPDX-License-Identifier: Apache-2.0
// Plain nests of containers, numbers, texts and tensors pickled without Python's pickler, which takes longer for a state dict
// of ten thousand tensors than the disk does.
// Needs the GIL.
// The result holds references to every storage.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace::python {

namespace nb = nanobind;

// (pickle, storages) of what torch.save would write, protocol 2; None for anything that is not plain: any other type or
// subclass, tensors with attributes, hooks, other layouts or devices, tuples within themselves. Storages are numbered "0",
// "1" and so on in the list.
nb::object pickle_state(nb::handle object);

}  // namespace headrace::python
