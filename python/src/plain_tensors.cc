// SPDX-License-Identifier: Apache-2.0
// See plain_tensors.h.
// Threads as plain_tensors.h says.
// Owners as plain_tensors.h says.
#include "plain_tensors.h"

#include <algorithm>
#include <utility>

#include "torch_facts.h"

namespace headrace::python {

namespace {

// Of its storage, which may have been resized to less than the tensor needs.
uint64_t bytes_from_its_first(nb::handle tensor) {
  const auto storage_bytes = nb::cast<uint64_t>(tensor.attr("untyped_storage")().attr("nbytes")());
  const auto first = nb::cast<uint64_t>(tensor.attr("storage_offset")()) * nb::cast<uint64_t>(tensor.attr("itemsize"));
  return storage_bytes - std::min(first, storage_bytes);
}

}  // namespace

std::optional<PlainTensors> plain_tensors(nb::handle object) {
  if (!PyDict_CheckExact(object.ptr())) return std::nullopt;
  PyObject* const listed = PyDict_Items(object.ptr());  // a copy: what is asked below may run Python code
  if (listed == nullptr) throw nb::python_error();
  PlainTensors found = {.tensors = {}, .items = nb::steal(listed)};
  const Py_ssize_t count = PyList_Size(listed);
  found.tensors.reserve(static_cast<size_t>(count));
  DTypes dtypes;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const item = PyList_GetItem(listed, i);
    PyObject* const name = PyTuple_GetItem(item, 0);
    const nb::handle tensor(PyTuple_GetItem(item, 1));
    if (!PyUnicode_CheckExact(name) || !is_plain_tensor(tensor) || !asked(tensor, "is_contiguous") ||
        asked(tensor, "is_conj") || asked(tensor, "is_neg"))
      return std::nullopt;
    Py_ssize_t bytes = 0;
    const char* const utf8 = PyUnicode_AsUTF8AndSize(name, &bytes);
    const std::optional<DType> dtype = dtypes.find(tensor.attr("dtype"));
    // Elements of half a byte are counted otherwise in the file.
    if (utf8 == nullptr || !dtype || *dtype == DType::float4_e2m1fn_x2) {
      PyErr_Clear();
      return std::nullopt;
    }
    const std::vector<int64_t> shape = integers(tensor.attr("shape"));
    const auto address = nb::cast<uintptr_t>(tensor.attr("data_ptr")());
    const auto tensor_bytes = nb::cast<uint64_t>(tensor.attr("nbytes"));
    if (tensor_bytes > bytes_from_its_first(tensor)) return std::nullopt;
    found.tensors.push_back(
        {.name = {utf8, static_cast<size_t>(bytes)},
         .dtype = *dtype,
         .shape = {shape.begin(), shape.end()},
         .data = {reinterpret_cast<const std::byte*>(address), tensor_bytes, {}}});
  }
  return found;
}

}  // namespace headrace::python
