// SPDX-License-Identifier: Apache-2.0
// DLPack, https://dmlc.github.io/dlpack/latest/: the C structures of versions 0.8 and 1, as far as host memory needs them.
// Import needs the GIL; the deleter of what is exported does not, it may run in any thread.
// An exported tensor owns a share of its Buffer; an imported one is owned by the Hold.
#pragma once

#include <vector>

#include <nanobind/nanobind.h>

#include <headrace/buffer.h>

#include "memory_argument.h"

namespace headrace::python {

// Appends the bytes of an object with __dlpack__ in host memory, or refuses by name.
void add_dlpack(nb::handle object, Access access, Hold& hold, std::vector<Span>& spans);

// A capsule over all bytes of `buffer`: shape [bytes], uint8, writable.
// `versioned` chooses DLPack 1.0's structure, which says so; the older one cannot.
enum class DlpackVersion : uint8_t { legacy, one };
nb::object make_dlpack(const Buffer& buffer, DlpackVersion version);

}  // namespace headrace::python
