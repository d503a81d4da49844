// SPDX-License-Identifier: Apache-2.0
// Parts of the messages about pickles.
// Any thread: pure functions.
// The string_view lives for ever.
#pragma once

#include <string>
#include <string_view>

#include <headrace/pickle.h>

namespace headrace::format {

// A name out of a file, which may be long, or no text at all: cut, and what is not printable ASCII escaped.
std::string told(std::string_view name);

// With its article: "a list".
std::string_view kind_name(PickleKind kind) noexcept;

}  // namespace headrace::format
