// SPDX-License-Identifier: Apache-2.0
// A dict of plain torch tensors, as a safetensors file takes them: read natively, because thousands of tensors cost more in Python
// than on the disk.
// Needs the GIL.
// Borrows the memory of the tensors, which `storages` keeps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include <headrace/region.h>
#include <headrace/tensor.h>

namespace headrace::python {

namespace nb = nanobind;

struct PlainTensor {
  std::string name;
  DType dtype = DType::float32;
  std::vector<uint64_t> shape;
  ConstRegion data;
};

struct PlainTensors {
  std::vector<PlainTensor> tensors;
  nb::object items;
  nb::list storages;
};

// Nothing if it is no dict, or if any of its values needs more than to be looked at.
std::optional<PlainTensors> plain_tensors(nb::handle object);

}  // namespace headrace::python
