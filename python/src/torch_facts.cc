// SPDX-License-Identifier: Apache-2.0
// See torch_facts.h.
// Threads as torch_facts.h says.
// Owners as torch_facts.h says.
#include "torch_facts.h"

#include <string>

#include <nanobind/stl/string.h>

#include "errors.h"

namespace headrace::python {

const TorchTypes& torch_types() {
  // Never freed: a module that unloads would drop them without the GIL.
  static const auto* const all = [] {
    auto* const types = new TorchTypes{.tensor = import_attribute("torch", "Tensor"),
                                       .parameter = import_attribute("torch.nn", "Parameter"),
                                       .ordered_dict = import_attribute("collections", "OrderedDict"),
                                       .strided = import_attribute("torch", "strided")};
    types->may_have_names = nb::hasattr(types->tensor, "has_names");
    return types;
  }();
  return *all;
}

bool is_plain_tensor(nb::handle object) {
  const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  if (type != torch_types().tensor.ptr() && type != torch_types().parameter.ptr()) return false;
  return truth(object, "is_cpu") && object.attr("layout").ptr() == torch_types().strided.ptr() &&
         !truth(object, "is_quantized") && !truth(object, "is_nested") && !truth(object, "is_mkldnn");
}

std::vector<int64_t> integers(nb::handle tuple) {
  std::vector<int64_t> all;
  const Py_ssize_t count = PyTuple_Size(tuple.ptr());
  all.reserve(count < 0 ? 0 : static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i)
    all.push_back(PyLong_AsLongLong(PyTuple_GetItem(tuple.ptr(), i)));
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return all;
}

std::optional<DType> DTypes::find(nb::handle dtype) {
  const auto found = known_.find(dtype.ptr());
  if (found != known_.end()) return found->second;
  std::string name = nb::cast<std::string>(text_of(dtype));
  if (name.starts_with("torch.")) name.erase(0, 6);
  const std::optional<DType> known = dtype_from_name(name);
  if (!known || *known >= DType::quint8 || dtype_facts(*known).torch_bytes == 0) return std::nullopt;
  known_.emplace(dtype.ptr(), *known);
  return known;
}

}  // namespace headrace::python
