// SPDX-License-Identifier: Apache-2.0
// What the heads of a checkpoint's files tell, and what a reader may stumble over.
// One thread beside the handle's.
// Owns what it finds until it is returned.
#include <headrace/inspect.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "convert/dcp.h"

namespace headrace {
namespace {

using Severity = CheckpointProblem::Severity;

class Inspector {
 public:
  Inspector(const CheckpointSet& set, const std::string& path) : set_(set) { inspection_.path = path; }

  Inspection run() {
    for (const CheckpointFile& file : set_.files()) {
      inspection_.files.push_back(facts_of(file));
      inspection_.others.insert(inspection_.others.end(), file.other_values().begin(), file.other_values().end());
    }
    for (const CheckpointSet::Tensor& tensor : set_.tensors())
      inspection_.tensors.push_back(facts_of(tensor));
    find_shared();
    inspection_.problems = set_.problems();
    for (uint32_t file = 0; file < set_.files().size(); ++file) {
      check_file(file);
      check_views(file);
    }
    for (const InspectedTensor& tensor : inspection_.tensors)
      check_alignment(tensor);
    if (inspection_.tensors.empty())
      add(Severity::warning, inspection_.files.empty() ? inspection_.path : inspection_.files.front().path, {}, 0,
          "no tensor was found in it");
    if (set_.index()) inspection_.index = set_.index()->path;
    return std::move(inspection_);
  }

 private:
  void add(Severity severity, std::string file, std::string tensor, uint64_t offset, std::string text) {
    inspection_.problems.push_back({.severity = severity,
                                    .file = std::move(file),
                                    .tensor = std::move(tensor),
                                    .offset_bytes = offset,
                                    .text = std::move(text)});
  }

  static InspectedFile facts_of(const CheckpointFile& file) {
    InspectedFile facts = {.path = file.path(),
                           .format = std::string(checkpoint_format_name(file.format())),
                           .bytes = file.file_bytes(),
                           .storages = file.storages().size()};
    for (const StoredBytes& storage : file.storages()) {
      facts.storage_bytes += storage.bytes;
      if (storage.crc32) ++facts.storages_with_crc32;
    }
    if (file.pickle() != nullptr) {
      for (const PickleGlobal& global : file.pickle()->globals())
        if (!global.known()) facts.unknown_globals.push_back(global.qualified_name);
    }
    if (file.metadata()) facts.metadata = *file.metadata();
    return facts;
  }

  InspectedTensor facts_of(CheckpointSet::Tensor at) const {
    const StoredTensor& tensor = set_.stored(at);
    const StoredBytes& storage = set_.files()[at.file].storages()[tensor.storage];
    const uint64_t offset = storage.offset_bytes + tensor.storage_offset_bytes;
    return {.name = tensor.name,
            .dtype = tensor.dtype,
            .shape = tensor.shape,
            .strides = tensor.strides,
            .file = at.file,
            .offset_bytes = offset,
            .bytes = tensor.bytes,
            .alignment_bytes = offset == 0 ? 0 : uint64_t{1} << std::countr_zero(offset),
            .contiguous = tensor.contiguous};
  }

  void find_shared() {
    std::unordered_map<uint64_t, uint32_t> first_by_storage;
    for (uint32_t i = 0; i < inspection_.tensors.size(); ++i) {
      const CheckpointSet::Tensor& at = set_.tensors()[i];
      const uint64_t storage = uint64_t{at.file} << 32 | set_.stored(at).storage;
      const auto [first, added] = first_by_storage.try_emplace(storage, i);
      if (!added) inspection_.tensors[i].shares_with = inspection_.tensors[first->second].name;
    }
  }

  void check_file(uint32_t at) {
    const CheckpointFile& file = set_.files()[at];
    const InspectedFile& facts = inspection_.files[at];
    if (!file.little_endian())
      add(Severity::warning, facts.path, {}, 0, "a big-endian machine wrote it: its elements have to be turned round");
    for (const std::string& name : facts.unknown_globals)
      add(Severity::warning, facts.path, {}, 0,
          fmt::format(
              "its pickle names {}: torch.load refuses it unless weights_only=False, which runs what the file says, or "
              "the class is allowed by name",
              name));
  }

  // Storages that nothing views, or that are larger than what views them: a slice was saved without .clone().
  void check_views(uint32_t at) {
    const CheckpointFile& file = set_.files()[at];
    std::vector<uint64_t> viewed(file.storages().size());
    for (const StoredTensor& tensor : file.tensors())
      viewed[tensor.storage] += std::min(tensor.bytes, file.storages()[tensor.storage].bytes - viewed[tensor.storage]);
    uint64_t unused = 0, wasted = 0;
    for (size_t i = 0; i < viewed.size(); ++i)
      (viewed[i] == 0 ? unused : wasted) += file.storages()[i].bytes - viewed[i];
    if (wasted > 0)
      add(Severity::note, file.path(), {}, 0,
          fmt::format(
              "{} bytes of its storages belong to no tensor found here: slices take their whole storage along (clone "
              "them before saving)",
              wasted));
    if (unused > 0)
      add(Severity::note, file.path(), {}, 0,
          fmt::format("{} bytes are in storages that no tensor found here uses; objects of unknown classes may",
                      unused));
  }

  void check_alignment(const InspectedTensor& tensor) {
    const uint32_t element_bytes = std::max<uint32_t>(dtype_facts(tensor.dtype).bits / 8, 1);
    if (tensor.bytes == 0 || !std::has_single_bit(element_bytes) || tensor.alignment_bytes >= element_bytes) return;
    add(Severity::warning, inspection_.files[tensor.file].path, tensor.name, tensor.offset_bytes,
        fmt::format("its elements of {} bytes begin at an odd place: a reader that maps the file has to copy it",
                    element_bytes));
  }

  const CheckpointSet& set_;
  Inspection inspection_;
};

}  // namespace

uint64_t element_count(const std::vector<uint64_t>& shape) noexcept {
  uint64_t count = 1;
  if (std::ranges::find(shape, uint64_t{0}) != shape.end()) return 0;
  for (const uint64_t size : shape) {
    if (count > std::numeric_limits<uint64_t>::max() / size) return std::numeric_limits<uint64_t>::max();
    count *= size;
  }
  return count;
}

Result<Inspection> inspect_checkpoint(Handle& handle, const std::string& path, const InspectOptions& options) {
  if (convert::is_dcp(path)) return convert::inspect_dcp(handle, path, options);
  const LoadOptions load = {.interrupted = options.interrupted, .protocols = PickleProtocols::later};
  Result<CheckpointSet> set = CheckpointSet::open(handle, path, load);
  if (!set) return std::unexpected(std::move(set).error());
  return Inspector(*set, path).run();
}

}  // namespace headrace
