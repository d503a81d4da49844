// SPDX-License-Identifier: Apache-2.0
// See pickle_state.h. Source of what is written: Tensor.__reduce_ex__ and Parameter.__reduce_ex__ of torch 2.6 to 2.13.
// Threads as pickle_state.h says.
// Owners as pickle_state.h says.
#include "pickle_state.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nanobind/stl/string.h>

#include <headrace/pickle_writer.h>

#include "errors.h"
#include "torch_facts.h"

namespace headrace::python {

namespace {

constexpr int kDepthMax = 200;
constexpr Py_ssize_t kBatch = 1000;  // items between a MARK and its SETITEMS or APPENDS, as in Python's pickler

// Thrown by nothing but plain(): this object is for Python's pickler.
struct NotPlain {};

void plain(bool condition) {
  if (!condition) throw NotPlain{};
}

class Walk {
 public:
  nb::object run(nb::handle object) {
    write(object, 0);
    Result<std::string> pickle = writer_.finish();
    plain(pickle.has_value());  // a text of 4 GiB and the like: Python's pickler says it better
    return nb::make_tuple(nb::bytes(pickle->data(), pickle->size()), storages_);
  }

 private:
  void write(nb::handle object, int depth) {
    PyObject* const raw = object.ptr();
    PyTypeObject* const type = Py_TYPE(raw);
    if (raw == Py_None) return writer_.none();
    if (type == &PyBool_Type) return writer_.boolean(raw == Py_True);
    if (type == &PyLong_Type) return write_integer(raw);
    if (type == &PyFloat_Type) return writer_.real(PyFloat_AsDouble(raw));
    if (type == &PyUnicode_Type) return write_text(raw);
    if (const auto known = memo_.find(raw); known != memo_.end()) {
      plain(known->second.has_value());  // a tuple within itself
      return writer_.get(*known->second);
    }
    plain(depth < kDepthMax);
    const auto* const as_object = reinterpret_cast<PyObject*>(type);
    if (type == &PyDict_Type) return write_dict(object, depth, false);
    if (type == &PyList_Type) return write_list(object, depth);
    if (type == &PyTuple_Type) return write_tuple(object, depth);
    if (as_object == torch_types().tensor.ptr()) return write_tensor(object, false);
    if (as_object == torch_types().parameter.ptr()) return write_tensor(object, true);
    plain(as_object == torch_types().ordered_dict.ptr());
    write_dict(object, depth, true);
  }

  void remember(nb::handle object) {
    memo_[object.ptr()] = writer_.memoize();
    kept_.append(object);  // its address must not be taken by another object meanwhile
  }

  void write_integer(PyObject* number) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow == 0) return writer_.integer(value);
    const nb::handle big(number);
    const auto bits = nb::cast<uint64_t>(nb::object(big.attr("bit_length")()));
    plain(bits < uint64_t{8} * 255);
    const nb::bytes bytes(nb::object(big.attr("to_bytes")(bits / 8 + 1, "little", nb::arg("signed") = true)));
    writer_.big_integer(std::as_bytes(std::span(bytes.c_str(), bytes.size())));
  }

  void write_text(PyObject* text) {
    Py_ssize_t bytes = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(text, &bytes);
    if (utf8 == nullptr) {  // a lone surrogate
      PyErr_Clear();
      throw NotPlain{};
    }
    writer_.text({utf8, static_cast<size_t>(bytes)});
  }

  void write_dict(nb::handle dict, int depth, bool ordered) {
    nb::object attributes;
    if (ordered) {
      writer_.ordered_dict();
      attributes = dict.attr("__dict__");
    } else {
      writer_.empty_dict();
    }
    remember(dict);
    // A copy of the items: walking may run Python code, which may change the dict.
    PyObject* const listed = PyDict_Items(dict.ptr());
    if (listed == nullptr) throw nb::python_error();
    const nb::object items = nb::steal(listed);
    const Py_ssize_t count = PyList_Size(listed);
    for (Py_ssize_t i = 0; i < count;) {
      writer_.mark();
      for (const Py_ssize_t end = std::min(count, i + kBatch); i < end; ++i) {
        PyObject* const item = PyList_GetItem(listed, i);
        write(PyTuple_GetItem(item, 0), depth + 1);
        write(PyTuple_GetItem(item, 1), depth + 1);
      }
      writer_.setitems();
    }
    if (!ordered || nb::len(attributes) == 0) return;
    write(attributes, depth + 1);
    writer_.build();
  }

  void write_list(nb::handle list, int depth) {
    writer_.empty_list();
    remember(list);
    for (Py_ssize_t i = 0; i < PyList_Size(list.ptr());) {
      writer_.mark();
      for (const Py_ssize_t end = i + kBatch; i < end && i < PyList_Size(list.ptr()); ++i)
        write(nb::borrow(PyList_GetItem(list.ptr(), i)), depth + 1);
      writer_.appends();
    }
  }

  void write_tuple(nb::handle tuple, int depth) {
    const Py_ssize_t count = PyTuple_Size(tuple.ptr());
    if (count == 0) return writer_.tuple_of(0);
    memo_[tuple.ptr()] = std::nullopt;
    if (count > 3) writer_.mark();
    for (Py_ssize_t i = 0; i < count; ++i)
      write(PyTuple_GetItem(tuple.ptr(), i), depth + 1);
    count > 3 ? writer_.tuple_from_mark() : writer_.tuple_of(static_cast<uint32_t>(count));
    remember(tuple);
  }

  DType dtype_of(nb::handle dtype) {
    const std::optional<DType> known = dtypes_.find(dtype);
    plain(known.has_value());
    return *known;
  }

  void write_tensor(nb::handle tensor, bool parameter) {
    plain(is_plain_tensor(tensor));
    plain(nb::len(nb::object(tensor.attr("__dict__"))) == 0 && tensor.attr("_backward_hooks").is_none());
    plain(!torch_types().may_have_names || !asked(tensor, "has_names"));
    const DType dtype = dtype_of(tensor.attr("dtype"));
    const nb::object storage = tensor.attr("untyped_storage")();
    plain(nb::cast<uint64_t>(storage.attr("nbytes")()) % dtype_facts(dtype).torch_bytes == 0);
    plain(storage.attr("device").attr("type").equal(nb::str("cpu")));
    const auto identity = nb::cast<uintptr_t>(storage.attr("_cdata"));
    const auto address = nb::cast<uintptr_t>(storage.attr("data_ptr")());
    // Two dtypes over one storage: Python's side refuses it, as torch does.
    if (address != 0) plain(types_of_storages_.try_emplace(address, dtype).first->second == dtype);
    const auto [entry, is_new] = keys_.try_emplace(identity, std::to_string(keys_.size()));
    if (is_new) storages_.append(storage);
    const std::vector<int64_t> sizes = integers(tensor.attr("shape"));
    const std::vector<int64_t> strides = integers(tensor.attr("stride")());
    TensorPickle pickle = {.dtype = dtype,
                           .storage_key = entry->second,
                           .storage_bytes = nb::cast<uint64_t>(storage.attr("nbytes")()),
                           .storage_offset = nb::cast<uint64_t>(tensor.attr("storage_offset")()),
                           .sizes = sizes,
                           .strides = strides,
                           .requires_grad = truth(tensor, "requires_grad"),
                           .conjugate = asked(tensor, "is_conj"),
                           .negative = asked(tensor, "is_neg")};
    if (parameter) {
      const bool requires_grad = pickle.requires_grad;
      pickle.requires_grad = false;  // its data's
      writer_.parameter(pickle, requires_grad);
    } else {
      writer_.tensor(pickle);
    }
    remember(tensor);
  }

  PickleWriter writer_;
  std::unordered_map<PyObject*, std::optional<PickleWriter::MemoId>> memo_;  // nothing: a tuple not yet whole
  DTypes dtypes_;
  std::unordered_map<uintptr_t, std::string> keys_;
  std::unordered_map<uintptr_t, DType> types_of_storages_;
  nb::list storages_;
  nb::list kept_;
};

}  // namespace

nb::object pickle_state(nb::handle object) {
  try {
    return Walk().run(object);
  } catch (const NotPlain&) {
    return nb::none();
  }
}

}  // namespace headrace::python
