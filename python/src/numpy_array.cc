// SPDX-License-Identifier: Apache-2.0
// See numpy_array.h.
// Needs the GIL.
// Caches numpy's array type for ever.
#include "numpy_array.h"

#include "errors.h"

namespace headrace::python {

namespace {

// Null while numpy is not imported, or only half.
PyObject* array_type() noexcept {
  static PyObject* type = nullptr;
  if (type != nullptr) return type;
  PyObject* numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");  // borrowed
  if (numpy == nullptr || numpy == Py_None) return nullptr;
  PyObject* found = PyObject_GetAttrString(numpy, "ndarray");
  if (found == nullptr || PyType_Check(found) == 0) {
    PyErr_Clear();
    Py_XDECREF(found);
    return nullptr;
  }
  type = found;
  return type;
}

bool truth(nb::handle object, const char* attribute) { return nb::cast<bool>(object.attr(attribute)); }

void refuse_as_target(nb::handle flags) {
  if (!truth(flags, "writeable")) refuse(PyExc_ValueError, "a read-only array cannot be a read target");
  if (!truth(flags, "c_contiguous")) {
    refuse(PyExc_ValueError,
           "an array that is not C-contiguous cannot be a read target: read into a contiguous one and copy from it");
  }
}

}  // namespace

bool is_numpy_array(nb::handle object) noexcept {
  PyObject* type = array_type();
  return type != nullptr && PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type)) != 0;
}

void add_numpy_array(nb::handle argument, Access access, Hold& hold, std::vector<Span>& spans) {
  nb::object array = nb::borrow(argument);
  if (truth(array.attr("dtype"), "hasobject")) {
    refuse(PyExc_ValueError, "an array of dtype object holds references, whose bytes mean nothing in a file");
  }
  if (array.type().ptr() != array_type() && nb::hasattr(array, "_mask")) {
    refuse(PyExc_ValueError, "a masked array cannot be moved as bytes: move its .data and its .mask");
  }
  const nb::object flags = array.attr("flags");
  if (access == Access::target) {
    refuse_as_target(flags);
  } else if (!truth(flags, "c_contiguous")) {
    array = import_attribute("numpy", "ascontiguousarray")(array);
  }
  if (nb::cast<uint64_t>(array.attr("nbytes")) == 0) return;

  // As bytes: every dtype has those, and a view of a contiguous array copies nothing.
  const nb::object bytes = array.attr("reshape")(-1).attr("view")("u1");
  const Py_buffer& view = hold.keep_buffer(bytes, access == Access::target ? PyBUF_WRITABLE : PyBUF_SIMPLE);
  spans.push_back({static_cast<std::byte*>(view.buf), static_cast<uint64_t>(view.len)});
  hold.keep(std::move(array));
}

}  // namespace headrace::python
