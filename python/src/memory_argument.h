// SPDX-License-Identifier: Apache-2.0
// From a Python argument to bytes in memory: torch tensors, numpy arrays, buffers, DLPack, and lists of these.
// Needs the GIL. Refusals are ValueError, or TypeError for what is no memory at all.
// Spans borrow from the Hold that is filled beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <nanobind/nanobind.h>

#include "hold.h"

namespace headrace::python {

enum class Access : uint8_t {
  source,  // read by a write request
  target,  // written by a read request
};

struct Span {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
};

// "as a read target" and "as a write source", for messages.
const char* access_name(Access access) noexcept;

// Appends the spans of `argument`, none for an empty one. Lists and tuples are gathered or scattered in order.
void add_memory(nb::handle argument, Access access, Hold& hold, std::vector<Span>& spans);

// Raises ValueError when two targets share bytes.
void refuse_overlap(std::span<const Span> spans);

uint64_t total_bytes(std::span<const Span> spans) noexcept;

}  // namespace headrace::python
