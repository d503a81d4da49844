// SPDX-License-Identifier: Apache-2.0
// See checkpoint.h.
// Threads as checkpoint.h says.
// Owners as checkpoint.h says.
#include "checkpoint.h"

#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <headrace/checkpoint.h>

#include "errors.h"
#include "file_object.h"
#include "handle_object.h"
#include "interpreter.h"
#include "options.h"

namespace headrace::python {

namespace {

// Address and length in bytes.
using Memory = std::pair<uintptr_t, uint64_t>;

std::vector<ConstRegion> regions_of(const std::vector<Memory>& memories) {
  std::vector<ConstRegion> regions;
  regions.reserve(memories.size());
  for (const auto& [address, bytes] : memories)
    regions.push_back({reinterpret_cast<const std::byte*>(address), bytes, {}});
  return regions;
}

SaveOptions save_options(const std::string& durability) {
  SaveOptions options;
  options.durability = parse_durability(durability, Durability::data);
  options.interrupted = &signal_handler_raised;
  return options;
}

uint64_t save_torch_zip_file(HandleObject& self, nb::handle path, nb::bytes pickle, const std::vector<Memory>& storages,
                             const std::string& durability, uint32_t alignment_bytes) {
  Handle& handle = self.open_handle();
  const std::string bytes = path_bytes(path);
  const std::vector<ConstRegion> regions = regions_of(storages);
  SaveOptions options = save_options(durability);
  options.alignment_bytes = alignment_bytes;
  const Result<uint64_t> saved = without_gil([&] {
    return save_torch_zip(handle, bytes, {.pickle = {pickle.c_str(), pickle.size()}, .storages = regions}, options);
  });
  if (!saved) raise(saved.error(), path);
  return *saved;
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  module.def("save_torch_zip", &save_torch_zip_file, nb::arg("handle"), nb::arg("path"), nb::arg("pickle"),
             nb::arg("storages"), nb::arg("durability"), nb::arg("alignment_bytes"),
             nb::sig("def save_torch_zip(handle: Handle, path: headrace._types.Path, pickle: bytes, storages: "
                     "list[tuple[int, int]], durability: str, alignment_bytes: int) -> int"),
             "Writes a zip container of torch.save; storages by address and length. The length of the file.");
}

}  // namespace headrace::python
