// SPDX-License-Identifier: Apache-2.0
// The globals that torch's weights_only unpickler admits by default, and the names that Python 2 had for Python 3's.
// Any thread: pure functions over constants.
// Owns nothing; the names returned are the arguments or live for ever.
#pragma once

#include <string_view>

#include <headrace/pickle.h>

namespace headrace::format {

struct GlobalName {
  std::string_view module;
  std::string_view name;
};

// Python 3's name of what a pickle of protocol 2 calls so; most names are their own.
GlobalName python3_name(GlobalName written) noexcept;

// Of a name as python3_name gives it. `qualified_name` is module, a dot, and name: the table goes by it, as torch's does.
PickleRole global_role(std::string_view module, std::string_view qualified_name) noexcept;

// What may be done with a global of this role, and with what it gives when called.
constexpr bool can_be_called(PickleRole role) noexcept { return role >= PickleRole::untyped_storage; }

constexpr bool is_class(PickleRole role) noexcept {
  return can_be_called(role) && role != PickleRole::function && role != PickleRole::tensor_function;
}

constexpr bool gives_dict(PickleRole role) noexcept {
  return role == PickleRole::ordered_dict || role == PickleRole::counter;
}

constexpr bool gives_tensor(PickleRole role) noexcept {
  return role == PickleRole::tensor_function || role == PickleRole::tensor_class || role == PickleRole::parameter;
}

}  // namespace headrace::format
