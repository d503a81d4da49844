// SPDX-License-Identifier: Apache-2.0
// Plain results as Python sees them: the route of a transfer, engines, the statistics of a handle.
// Needs the GIL.
// Values only.
#pragma once

#include <nanobind/nanobind.h>

#include <headrace/handle.h>
#include <headrace/transfer.h>

namespace headrace::python {

namespace nb = nanobind;

struct RouteObject {
  explicit RouteObject(Route route) : value(std::move(route)) {}
  Route value;
};

nb::dict stats_dict(const HandleStats& stats);
nb::dict facts_dict(const HandleFacts& facts);

void bind_route(nb::module_& module);

}  // namespace headrace::python
