// SPDX-License-Identifier: Apache-2.0
// A pickle that was read and checked becomes Python objects, step by step, from a table of things it may use.
// Needs the GIL.
// Borrows all arguments for the call.
#pragma once

#include <functional>

#include <nanobind/nanobind.h>

#include <headrace/pickle.h>

namespace headrace::python {

namespace nb = nanobind;

// `table`: from "module.name" to the object; a global that is not in there is refused. `storage_of`: the storage that a
// reference means.
// `build(object, state)`: applies a state to what is neither dict nor list. Raises FormatError, with the offset and the
// exception that was the reason, for contents that these objects refuse.
nb::object replay_pickle(const Pickle& pickle, nb::dict table,
                         const std::function<nb::object(const PickleStorage&)>& storage_of, nb::handle build,
                         nb::handle filename);

}  // namespace headrace::python
