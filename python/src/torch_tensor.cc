// SPDX-License-Identifier: Apache-2.0
// See torch_tensor.h.
// Needs the GIL.
// Caches three objects of torch for ever: its tensor type, its strided layout, its function that bumps versions.
#include "torch_tensor.h"

#include <string>

#include <nanobind/stl/string.h>

#include "errors.h"

namespace headrace::python {

namespace {

PyObject* loaded_module(const char* name) noexcept {
  PyObject* modules = PyImport_GetModuleDict();  // borrowed
  PyObject* module = PyDict_GetItemString(modules, name);
  return module == Py_None ? nullptr : module;
}

// Null while torch is not imported, or only half.
PyObject* tensor_type() noexcept {
  static PyObject* type = nullptr;
  if (type != nullptr) return type;
  PyObject* torch = loaded_module("torch");
  if (torch == nullptr) return nullptr;
  PyObject* found = PyObject_GetAttrString(torch, "Tensor");
  if (found == nullptr || PyType_Check(found) == 0) {
    PyErr_Clear();
    Py_XDECREF(found);
    return nullptr;
  }
  type = found;
  return type;
}

PyObject* strided_layout() {
  static PyObject* layout = nullptr;
  if (layout == nullptr) layout = import_attribute("torch", "strided").release().ptr();
  return layout;
}

bool truth(nb::handle tensor, const char* attribute) { return nb::cast<bool>(tensor.attr(attribute)); }
bool answer(nb::handle tensor, const char* method) { return nb::cast<bool>(tensor.attr(method)()); }
uint64_t number(nb::handle tensor, const char* method) { return nb::cast<uint64_t>(tensor.attr(method)()); }

void refuse_what_has_no_host_bytes(nb::handle tensor) {
  const nb::object layout = tensor.attr("layout");
  if (layout.ptr() != strided_layout()) {
    const nb::str name = text_of(layout);
    refuse(PyExc_ValueError,
           "a tensor of layout %U cannot be moved as bytes: move its parts (indices and values), or .to_dense()",
           name.ptr());
  }
  if (truth(tensor, "is_nested")) {
    refuse(PyExc_ValueError, "a nested tensor cannot be moved as bytes: move its parts, see Tensor.unbind()");
  }
  if (truth(tensor, "is_meta")) {
    refuse(PyExc_ValueError,
           "a tensor on the meta device has no bytes: make a real one, such as torch.empty_like(t, device='cpu')");
  }
  if (!truth(tensor, "is_cpu")) {
    const nb::object device = tensor.attr("device");
    const nb::str name = text_of(device);
    refuse(PyExc_ValueError,
           "a tensor on device %U cannot be moved: GPU memory is not supported by this version; use a CPU tensor",
           name.ptr());
  }
}

// Without a copy nothing but the order of the elements in memory can be filled.
void refuse_as_target(nb::handle tensor) {
  if (answer(tensor, "is_conj") || answer(tensor, "is_neg")) {
    refuse(PyExc_ValueError,
           "a conjugate or negative view cannot be a read target: its memory holds other values than it shows; "
           "read into its base, or into t.resolve_conj().resolve_neg()");
  }
  if (answer(tensor, "is_contiguous")) return;
  const nb::object strides = tensor.attr("stride")();
  const nb::object shape = tensor.attr("shape");
  const size_t dimensions = nb::len(shape);
  for (size_t i = 0; i < dimensions; ++i) {
    if (nb::cast<int64_t>(strides[i]) == 0 && nb::cast<int64_t>(shape[i]) > 1) {
      refuse(PyExc_ValueError,
             "an expanded tensor cannot be a read target: several of its elements overlap at one address; read into "
             "a tensor of its own, such as copy = t.contiguous()");
    }
  }
  refuse(PyExc_ValueError,
         "a tensor that is not contiguous cannot be a read target: read into a contiguous one and copy_() from it");
}

nb::object as_contiguous_values(nb::handle tensor) {
  nb::object values = tensor.attr("detach")();
  if (answer(values, "is_conj")) values = values.attr("resolve_conj")();
  if (answer(values, "is_neg")) values = values.attr("resolve_neg")();
  return values.attr("contiguous")();
}

// Its storage, refused when that has no bytes on the host: a fake tensor says "cpu" and means "meta", a wrapper has none.
nb::object host_storage_of(nb::handle tensor) {
  nb::object storage;
  try {
    storage = tensor.attr("untyped_storage")();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
    nb::raise_from(error, PyExc_ValueError, "this tensor has no memory of its own that could be moved");
  }
  const nb::object device = storage.attr("device");
  if (nb::cast<std::string>(device.attr("type")) != "cpu") {
    const nb::str name = text_of(device);
    refuse(PyExc_ValueError, "this tensor has its storage on device %U and no bytes on the host", name.ptr());
  }
  return storage;
}

}  // namespace

bool is_torch_tensor(nb::handle object) noexcept {
  PyObject* type = tensor_type();
  return type != nullptr && PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type)) != 0;
}

void add_torch_tensor(nb::handle argument, Access access, Hold& hold, std::vector<Span>& spans) {
  refuse_what_has_no_host_bytes(argument);
  nb::object tensor = nb::borrow(argument);
  if (access == Access::target) {
    refuse_as_target(tensor);
  } else if (!answer(tensor, "is_contiguous") || answer(tensor, "is_conj") || answer(tensor, "is_neg")) {
    tensor = as_contiguous_values(tensor);
  }
  const uint64_t element_bytes = number(tensor, "element_size");
  const uint64_t bytes = number(tensor, "numel") * element_bytes;
  if (access == Access::target) hold.keep_target_tensor(tensor);
  if (bytes == 0) return;

  nb::object storage = host_storage_of(tensor);
  const uint64_t address = number(tensor, "data_ptr");
  const uint64_t first_byte = number(tensor, "storage_offset") * element_bytes;
  const uint64_t storage_bytes = number(storage, "nbytes");
  if (address == 0 || first_byte > storage_bytes || bytes > storage_bytes - first_byte) {
    refuse(PyExc_ValueError,
           "this tensor wants %llu bytes and its storage holds %llu: the storage was resized or freed",
           static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(storage_bytes));
  }
  // The storage as well: `t.data = other` would otherwise free the memory under the transfer.
  hold.keep(std::move(storage));
  hold.keep(std::move(tensor));
  spans.push_back({reinterpret_cast<std::byte*>(address), bytes});
}

void bump_version(nb::handle tensor) noexcept {
  static PyObject* increment = nullptr;
  const nb::error_scope keep_the_error_in_flight;
  try {
    if (answer(tensor, "is_inference")) return;
    if (increment == nullptr) {
      increment = import_attribute("torch.autograd.graph", "increment_version").release().ptr();
    }
    const nb::handle function(increment);
    function(tensor);
  } catch (nb::python_error&) {  // NOLINT(bugprone-empty-catch)
    // The exception object dies here: nothing to tell, the bytes arrive all the same.
  }
}

}  // namespace headrace::python
