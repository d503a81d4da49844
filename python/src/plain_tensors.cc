// SPDX-License-Identifier: Apache-2.0
// See plain_tensors.h.
// Threads as plain_tensors.h says.
// Owners as plain_tensors.h says.
#include "plain_tensors.h"

#include <algorithm>
#include <utility>

#include "torch_facts.h"

namespace headrace::python {

std::optional<PlainTensors> plain_tensors(nb::handle object) {
  if (!PyDict_CheckExact(object.ptr())) return std::nullopt;
  PyObject* const listed = PyDict_Items(object.ptr());  // a copy: what is asked below may run Python code
  if (listed == nullptr) throw nb::python_error();
  PlainTensors found = {.tensors = {}, .items = nb::steal(listed), .storages = {}};
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
    // Held as well: `t.data = other` would otherwise free the memory under the save.
    const nb::object storage = tensor.attr("untyped_storage")();
    found.storages.append(storage);
    const auto storage_bytes = nb::cast<uint64_t>(storage.attr("nbytes")());
    const auto bytes_before = nb::cast<uint64_t>(tensor.attr("storage_offset")()) * dtype_facts(*dtype).torch_bytes;
    const auto tensor_bytes = nb::cast<uint64_t>(tensor.attr("nbytes"));
    if (tensor_bytes > storage_bytes - std::min(bytes_before, storage_bytes)) return std::nullopt;  // it was resized
    const uintptr_t address = tensor_bytes == 0 ? 0 : nb::cast<uintptr_t>(storage.attr("data_ptr")()) + bytes_before;
    found.tensors.push_back({.name = {utf8, static_cast<size_t>(bytes)},
                             .dtype = *dtype,
                             .shape = {shape.begin(), shape.end()},
                             .data = {reinterpret_cast<const std::byte*>(address), tensor_bytes, {}}});
  }
  return found;
}

}  // namespace headrace::python
