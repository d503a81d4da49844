// SPDX-License-Identifier: Apache-2.0
// What torch says of a tensor, asked in Python: torch is neither linked nor imported here.
// Needs the GIL.
// TorchTypes caches types of torch for ever.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include <nanobind/nanobind.h>

#include <headrace/tensor.h>

namespace headrace::python {

namespace nb = nanobind;

struct TorchTypes {
  nb::object tensor;
  nb::object parameter;
  nb::object ordered_dict;
  nb::object strided;
  bool may_have_names = false;
};
// Imports torch at the first call.
const TorchTypes& torch_types();

// True for a Tensor or Parameter, not of a subclass, whose elements lie in host memory.
bool is_plain_tensor(nb::handle object);

inline bool truth(nb::handle object, const char* name) { return object.attr(name).ptr() == Py_True; }
inline bool asked(nb::handle object, const char* method) { return object.attr(method)().ptr() == Py_True; }

// The integers of a tuple: a shape or strides.
std::vector<int64_t> integers(nb::handle tuple);

// From objects of torch.dtype to DType; nothing for those that tensors of plain elements do not have.
class DTypes {
 public:
  std::optional<DType> find(nb::handle dtype);

 private:
  std::unordered_map<PyObject*, DType> known_;
};

}  // namespace headrace::python
