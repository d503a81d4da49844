// SPDX-License-Identifier: Apache-2.0
// See pickle_replay.h. The parser has proved that every operand exists before it is used.
// Threads as pickle_replay.h says.
// Owns the objects until the root is returned.
#include "pickle_replay.h"

#include <string>
#include <utility>
#include <vector>

#include <headrace/error.h>

#include "errors.h"

namespace headrace::python {

namespace {

nb::object owned(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

class Replay {
 public:
  Replay(const Pickle& pickle, nb::dict table, const std::function<nb::object(const PickleStorage&)>& storage_of,
         nb::handle build)
      : pickle_(pickle),
        table_(std::move(table)),
        storage_of_(storage_of),
        build_(build),
        nodes_(pickle.node_count()) {}

  nb::object run() {
    for (const PickleStep& step : pickle_.steps()) {
      at_ = step.first;
      const std::span<const PickleNode> operands = pickle_.operands(step);
      switch (step.kind) {
        case PickleStepKind::create:
          for (uint32_t i = 0; i < step.count; ++i) {
            at_ = step.first + i;
            nodes_[at_] = make(at_);
          }
          break;
        case PickleStepKind::append:
          for (const PickleNode item : operands)
            check(PyList_Append(nodes_[step.first].ptr(), nodes_[item].ptr()));
          break;
        case PickleStepKind::set_items:
          for (size_t i = 0; i + 1 < operands.size(); i += 2)
            check(PyObject_SetItem(nodes_[step.first].ptr(), nodes_[operands[i]].ptr(), nodes_[operands[i + 1]].ptr()));
          break;
        case PickleStepKind::build: build_(nodes_[step.first], nodes_[operands[0]]); break;
      }
    }
    return nodes_[pickle_.root()];
  }

  [[nodiscard]] PickleNode at() const noexcept { return at_; }

 private:
  static void check(int status) {
    if (status != 0) throw nb::python_error();
  }

  nb::object make(PickleNode node) const {
    switch (pickle_.kind(node)) {
      case PickleKind::none: return nb::none();
      case PickleKind::boolean: return nb::bool_(*pickle_.boolean(node));
      case PickleKind::integer: return nb::int_(*pickle_.integer(node));
      case PickleKind::big_integer: {
        const std::span<const std::byte> bytes = pickle_.bytes(node);
        const nb::bytes little(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        const nb::handle type(reinterpret_cast<PyObject*>(&PyLong_Type));
        return type.attr("from_bytes")(little, "little", nb::arg("signed") = true);
      }
      case PickleKind::real: return nb::float_(*pickle_.real(node));
      case PickleKind::text: {
        const std::string_view text = *pickle_.text(node);
        return owned(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"));
      }
      case PickleKind::bytes: {  // a str of Python 2, decoded as torch.load does by default
        const std::span<const std::byte> bytes = pickle_.bytes(node);
        return owned(PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(bytes.data()),
                                          static_cast<Py_ssize_t>(bytes.size()), "strict"));
      }
      case PickleKind::tuple: return tuple(pickle_.tuple_items(node));
      case PickleKind::list: return nb::list();
      case PickleKind::dict: return nb::dict();
      case PickleKind::set: return owned(PySet_New(nullptr));
      case PickleKind::global: return global(node);
      case PickleKind::storage: return storage_of_(*pickle_.storage(node));
      case PickleKind::call: {
        const PickleCall call = *pickle_.call(node);
        return owned(PyObject_CallObject(nodes_[call.callee].ptr(), nodes_[call.arguments].ptr()));
      }
      case PickleKind::instance: {
        const PickleCall call = *pickle_.call(node);
        const nb::object& type = nodes_[call.callee];
        if (pickle_.role(call.callee) == PickleRole::parameter)
          return owned(PyObject_CallObject(type.ptr(), nodes_[call.arguments].ptr()));
        const nb::object arguments = nb::make_tuple(type) + nb::borrow<nb::tuple>(nodes_[call.arguments]);
        return owned(PyObject_CallObject(type.attr("__new__").ptr(), arguments.ptr()));
      }
    }
    return nb::none();
  }

  nb::object tuple(std::span<const PickleNode> items) const {
    nb::object made = owned(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
    for (size_t i = 0; i < items.size(); ++i)
      check(PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), nb::object(nodes_[items[i]]).release().ptr()));
    return made;
  }

  nb::object global(PickleNode node) const {
    const PickleGlobal& global = pickle_.globals()[*pickle_.global(node)];
    const nb::str name(global.qualified_name.data(), global.qualified_name.size());
    PyObject* found = PyDict_GetItemWithError(table_.ptr(), name.ptr());
    if (found == nullptr) {
      if (PyErr_Occurred() == nullptr) PyErr_Format(PyExc_ValueError, "%U is not admitted", name.ptr());
      throw nb::python_error();
    }
    return nb::borrow(found);
  }

  const Pickle& pickle_;
  nb::dict table_;
  const std::function<nb::object(const PickleStorage&)>& storage_of_;
  nb::handle build_;
  std::vector<nb::object> nodes_;
  PickleNode at_ = 0;
};

}  // namespace

nb::object replay_pickle(const Pickle& pickle, nb::dict table,
                         const std::function<nb::object(const PickleStorage&)>& storage_of, nb::handle build,
                         nb::handle filename) {
  Replay replay(pickle, std::move(table), storage_of, build);
  try {
    return replay.run();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
    const nb::object reason = text_of(error.value());
    Error corrupt = {.code = ErrorCode::corrupt,
                     .operation = "load",
                     .offset_bytes = pickle.offset_bytes(replay.at()),
                     .detail = "the object that the pickle describes cannot be made (byte " +
                               std::to_string(pickle.offset_bytes(replay.at())) +
                               " of the pickle): " + nb::cast<std::string>(reason)};
    nb::object exception = make_exception(corrupt, filename);
    exception.attr("__cause__") = error.value();
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
    throw nb::python_error();
  }
}

}  // namespace headrace::python
