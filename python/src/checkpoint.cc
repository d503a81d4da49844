// SPDX-License-Identifier: Apache-2.0
// See checkpoint.h.
// Threads as checkpoint.h says.
// Owners as checkpoint.h says.
#include "checkpoint.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <headrace/checkpoint.h>
#include <headrace/checkpoint_set.h>

#include "device_copy.h"
#include "errors.h"
#include "file_object.h"
#include "handle_object.h"
#include "interpreter.h"
#include "options.h"
#include "pickle_replay.h"
#include "pickle_state.h"
#include "plain_tensors.h"

namespace headrace::python {

namespace {

// Address and length in bytes.
using Memory = std::pair<uintptr_t, uint64_t>;

SaveOptions save_options(const std::string& durability, PythonCopy* copy = nullptr) {
  SaveOptions options;
  if (copy != nullptr) options.device_copy = copy->device_copy();
  options.durability = parse_durability(durability, Durability::data);
  options.interrupted = &signal_handler_raised;
  return options;
}

template <class Save>
uint64_t save(nb::handle path, Save&& save_to, const PythonCopy* copy = nullptr) {
  const std::string bytes = path_bytes(path);
  const Result<uint64_t> saved = without_gil([&] { return save_to(bytes); });
  if (!saved && copy != nullptr) copy->raise_again();
  if (!saved) raise(saved.error(), path);
  return *saved;
}

uint64_t save_torch_zip_file(HandleObject& self, nb::handle path, const nb::bytes& pickle,
                             const std::vector<Memory>& storages, const std::string& durability,
                             uint32_t alignment_bytes, std::optional<DeviceCopyArgument> device_copy) {
  Handle& handle = self.open_handle();
  std::vector<ConstRegion> regions;
  regions.reserve(storages.size());
  for (const auto& [address, bytes] : storages)
    regions.push_back(region_at(address, bytes));
  PythonCopy copy(std::move(device_copy));
  SaveOptions options = save_options(durability, &copy);
  options.alignment_bytes = alignment_bytes;
  const TorchArchive archive = {.pickle = {pickle.c_str(), pickle.size()}, .storages = regions};
  return save(path, [&](const std::string& to) { return save_torch_zip(handle, to, archive, options); }, &copy);
}

// Key, element count, address, bytes.
using LegacyStorage = std::tuple<std::string, uint64_t, uintptr_t, uint64_t>;

uint64_t save_torch_legacy_file(HandleObject& self, nb::handle path, const nb::bytes& pickle,
                                const std::vector<LegacyStorage>& storages, const std::string& durability,
                                std::optional<DeviceCopyArgument> device_copy) {
  Handle& handle = self.open_handle();
  std::vector<TorchLegacyStorage> all;
  all.reserve(storages.size());
  for (const auto& [key, count, address, bytes] : storages)
    all.push_back({.key = key, .element_count = count, .data = region_at(address, bytes)});
  PythonCopy copy(std::move(device_copy));
  const SaveOptions options = save_options(durability, &copy);
  const std::string_view text(pickle.c_str(), pickle.size());
  return save(path, [&](const std::string& to) { return save_torch_legacy(handle, to, text, all, options); }, &copy);
}

// Name, element type, shape as safetensors counts it, address, bytes.
using Tensor = std::tuple<std::string, std::string, std::vector<uint64_t>, uintptr_t, uint64_t>;

DType parse_dtype(const std::string& name) {
  const std::optional<DType> dtype = dtype_from_name(name);
  if (!dtype) refuse(PyExc_ValueError, "no element type is called '%s'", name.c_str());
  return *dtype;
}

uint64_t save_safetensors_file(HandleObject& self, nb::handle path, const std::vector<Tensor>& tensors,
                               const std::optional<Metadata>& metadata, const std::string& durability,
                               std::optional<DeviceCopyArgument> device_copy) {
  Handle& handle = self.open_handle();
  std::vector<NamedTensor> all;
  all.reserve(tensors.size());
  for (const auto& [name, dtype, shape, address, bytes] : tensors)
    all.push_back({.name = name, .dtype = parse_dtype(dtype), .shape = shape, .data = region_at(address, bytes)});
  PythonCopy copy(std::move(device_copy));
  const SaveOptions options = save_options(durability, &copy);
  return save(path, [&](const std::string& to) { return save_safetensors(handle, to, all, metadata, options); }, &copy);
}

// Nothing of it is done, and None returned, where a tensor is not plain.
nb::object save_safetensors_state(HandleObject& self, nb::handle path, nb::handle state,
                                  const std::optional<Metadata>& metadata, const std::string& durability) {
  Handle& handle = self.open_handle();
  const std::optional<PlainTensors> plain = plain_tensors(state);  // which keeps their memory
  if (!plain) return nb::none();
  std::vector<NamedTensor> all;
  all.reserve(plain->tensors.size());
  for (const PlainTensor& one : plain->tensors)
    all.push_back({.name = one.name, .dtype = one.dtype, .shape = one.shape, .data = one.data});
  const SaveOptions options = save_options(durability);
  return nb::cast(
      save(path, [&](const std::string& to) { return save_safetensors(handle, to, all, metadata, options); }));
}

Verify parse_verify(const std::string& word) {
  if (word == "auto") return Verify::automatic;
  if (word == "require") return Verify::require;
  if (word == "off") return Verify::off;
  refuse(PyExc_ValueError, "verify must be one of 'auto', 'require', 'off', not '%s'", word.c_str());
}

LoadOptions load_options(const std::string& verify) {
  LoadOptions options;
  options.verify = parse_verify(verify);
  options.interrupted = &signal_handler_raised;
  return options;
}

// A CheckpointFile with the name that Python gave it.
struct CheckpointObject {
  CheckpointFile file;
  nb::object name;
};

void construct(CheckpointObject* self, HandleObject& handle_object, nb::handle path, const std::string& verify) {
  Handle& handle = handle_object.open_handle();
  const std::string bytes = path_bytes(path);
  const LoadOptions options = load_options(verify);
  Result<CheckpointFile> file = without_gil([&] { return CheckpointFile::open(handle, bytes, options); });
  if (!file) raise(file.error(), path);
  new (self) CheckpointObject{*std::move(file), nb::borrow(path)};
}

nb::object text_or_none(std::string_view text) {
  return text.empty() ? nb::none() : nb::object(nb::str(text.data(), text.size()));
}

// Empty for untyped storages.
std::string_view dtype_name_of(const Pickle& pickle, const PickleStorage& reference) {
  const std::string_view kind = pickle.globals()[*pickle.global(reference.type)].name();
  const std::optional<DType> dtype = dtype_from_torch_storage(kind);
  return dtype ? dtype_facts(*dtype).name : std::string_view();
}

// (key, offset, bytes, crc32 or None, dtype or None, location or None). Type and location are those of the first
// persistent id that names the storage, which is the one that torch.load makes it from.
nb::list storages_of(const CheckpointObject& self) {
  struct First {
    std::string_view dtype;
    std::string_view location;
    bool seen = false;
  };
  const std::span<const StoredBytes> storages = self.file.storages();
  std::vector<First> first(storages.size());
  if (const Pickle* pickle = self.file.pickle()) {
    for (PickleNode node = 0; node < pickle->node_count(); ++node) {
      const std::optional<PickleStorage> id = pickle->storage(node);
      if (!id) continue;
      const std::optional<uint32_t> storage = self.file.find_storage(id->key);
      if (!storage || first[*storage].seen) continue;
      first[*storage] = {.dtype = dtype_name_of(*pickle, *id), .location = id->location, .seen = true};
    }
  }
  nb::list all;
  for (size_t i = 0; i < storages.size(); ++i) {
    const StoredBytes& one = storages[i];
    const nb::object sum = one.crc32 ? nb::object(nb::int_(*one.crc32)) : nb::none();
    all.append(nb::make_tuple(nb::str(one.key.data(), one.key.size()), one.offset_bytes, one.bytes, sum,
                              text_or_none(first[i].dtype), text_or_none(first[i].location)));
  }
  return all;
}

// (name, dtype, shape, strides, storage, offset in it in bytes, bytes, contiguous, requires_grad, "conj neg")
nb::list tensors_of(const CheckpointObject& self) {
  nb::list all;
  for (const StoredTensor& one : self.file.tensors()) {
    const std::string_view dtype = dtype_facts(one.dtype).name;
    PyObject* name = PyUnicode_DecodeUTF8(one.name.data(), static_cast<Py_ssize_t>(one.name.size()), "surrogatepass");
    if (name == nullptr) {
      PyErr_Clear();
      name = PyUnicode_DecodeUTF8(one.name.data(), static_cast<Py_ssize_t>(one.name.size()), "replace");
    }
    if (name == nullptr) throw nb::python_error();
    all.append(nb::make_tuple(nb::steal(name), nb::str(dtype.data(), dtype.size()), one.shape, one.strides, one.storage,
                              one.storage_offset_bytes, one.bytes, one.contiguous, one.requires_grad,
                              std::string(one.conjugate ? "conj" : "") + (one.negative ? " neg" : "")));
  }
  return all;
}

nb::object metadata_of(const CheckpointObject& self) {
  if (!self.file.metadata()) return nb::none();
  nb::dict all;
  for (const auto& [key, value] : *self.file.metadata())
    all[nb::str(key.data(), key.size())] = nb::str(value.data(), value.size());
  return all;
}

nb::list globals_of(const CheckpointObject& self, bool known) {
  nb::list all;
  if (const Pickle* pickle = self.file.pickle()) {
    for (const PickleGlobal& global : pickle->globals()) {
      if (global.known() == known) all.append(nb::str(global.qualified_name.data(), global.qualified_name.size()));
    }
  }
  return all;
}

// The storages asked for: (memory, offset in it, bytes) each, and the memories.
nb::tuple load_storages(const CheckpointObject& self, HandleObject& handle_object, const std::vector<uint32_t>& wanted,
                        const std::string& verify) {
  Handle& handle = handle_object.open_handle();
  const LoadOptions options = load_options(verify);
  Result<LoadedStorages> loaded = without_gil([&] { return self.file.load(handle, wanted, options); });
  if (!loaded) raise(loaded.error(), self.name);
  nb::list places;
  for (const LoadedBytes& one : loaded->storages) {
    const uint64_t offset = one.bytes == 0 ? 0 : static_cast<uint64_t>(one.data - loaded->memory[one.memory].data());
    places.append(nb::make_tuple(one.memory, offset, one.bytes));
  }
  nb::list memory;
  for (Buffer& buffer : loaded->memory)
    memory.append(nb::cast(std::move(buffer)));
  return nb::make_tuple(places, memory);
}

// Storage, offset in it, address, bytes.
using Read = std::tuple<uint32_t, uint64_t, uintptr_t, uint64_t>;

void read_storages(const CheckpointObject& self, HandleObject& handle_object, const std::vector<Read>& wanted,
                   const std::string& verify) {
  Handle& handle = handle_object.open_handle();
  const LoadOptions options = load_options(verify);
  std::vector<StorageRead> reads;
  reads.reserve(wanted.size());
  for (const auto& [storage, offset, address, bytes] : wanted)
    reads.push_back(
        {.storage = storage, .offset_bytes = offset, .target = {reinterpret_cast<std::byte*>(address), bytes, {}}});
  const Status done = without_gil([&] { return self.file.read(handle, reads, options); });
  if (!done) raise(done.error(), self.name);
}

nb::object replay(const CheckpointObject& self, nb::dict table, nb::list storages, nb::object build,
                  nb::object empty_like) {
  const Pickle* pickle = self.file.pickle();
  if (pickle == nullptr) refuse(PyExc_ValueError, "this file has no pickle");
  const auto storage_of = [&](const PickleStorage& reference) -> nb::object {
    const uint32_t i = *self.file.find_storage(reference.key);
    if (self.file.storages()[i].bytes != 0) return storages[i];
    return empty_like(nb::object(storages[i]), text_or_none(dtype_name_of(*pickle, reference)));
  };
  return replay_pickle(*pickle, std::move(table), storage_of, std::move(build), self.name);
}

// The paths, and what the index says: which file each tensor is in.
nb::tuple checkpoint_files(nb::handle path) {
  const std::string bytes = path_bytes(path);
  const Result<CheckpointFiles> files = without_gil([&] { return find_checkpoint_files(bytes); });
  if (!files) raise(files.error(), path);
  nb::list paths;
  for (const std::string& file : files->paths)
    paths.append(decode_path(file));
  nb::object tensors = nb::none();
  if (files->index) {
    nb::dict by_name;
    for (const ShardIndex::Entry& entry : files->index->entries)
      by_name[nb::str(entry.tensor.c_str(), entry.tensor.size())] = paths[entry.file];
    tensors = std::move(by_name);
  }
  return nb::make_tuple(paths, tensors);
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  module.def(
      "checkpoint_files", &checkpoint_files, nb::arg("path"),
      nb::sig("def checkpoint_files(path: headrace._types.Path) -> tuple[list[str], dict[str, str] | None]"),
      "The files of the checkpoint that a file, a folder, an index or the common start of their names stands for; "
      "from an index the file of each tensor.");
  module.def(
      "save_torch_zip", &save_torch_zip_file, nb::arg("handle"), nb::arg("path"), nb::arg("pickle"),
      nb::arg("storages"), nb::arg("durability"), nb::arg("alignment_bytes"), nb::arg("device_copy") = nb::none(),
      nb::sig("def save_torch_zip(handle: Handle, path: headrace._types.Path, pickle: bytes, storages: "
              "list[tuple[int, int]], durability: str, alignment_bytes: int, device_copy: "
              "headrace._types.DeviceCopy | None = None) -> int"),
      "Writes a zip container of torch.save; storages by address and length. Addresses from 2^63 on are numbers of "
      "``device_copy``: address and length of staging memory, and copy(address, length, offset in the staging "
      "memory). The length of the file.");
  module.def("save_torch_legacy", &save_torch_legacy_file, nb::arg("handle"), nb::arg("path"), nb::arg("pickle"),
             nb::arg("storages"), nb::arg("durability"), nb::arg("device_copy") = nb::none(),
             nb::sig("def save_torch_legacy(handle: Handle, path: headrace._types.Path, pickle: bytes, storages: "
                     "list[tuple[str, int, int, int]], durability: str, device_copy: headrace._types.DeviceCopy | None "
                     "= None) -> int"),
             "Writes torch's legacy container; storages by key, element count, address and length.");
  module.def("save_safetensors", &save_safetensors_file, nb::arg("handle"), nb::arg("path"), nb::arg("tensors"),
             nb::arg("metadata").none(), nb::arg("durability"), nb::arg("device_copy") = nb::none(),
             nb::sig("def save_safetensors(handle: Handle, path: headrace._types.Path, tensors: list[tuple[str, str, "
                     "list[int], int, int]], metadata: list[tuple[str, str]] | None, durability: str, device_copy: "
                     "headrace._types.DeviceCopy | None = None) -> int"),
             "Writes a safetensors file; tensors by name, dtype, shape, address and length.");
  module.def("save_safetensors_state", &save_safetensors_state, nb::arg("handle"), nb::arg("path"), nb::arg("state"),
             nb::arg("metadata").none(), nb::arg("durability"),
             nb::sig("def save_safetensors_state(handle: Handle, path: headrace._types.Path, state: object, metadata: "
                     "list[tuple[str, str]] | None, durability: str) -> int | None"),
             "The same for a dict of plain CPU tensors; None, and nothing done, for anything else.");
  module.def("pickle_state", &pickle_state, nb::arg("object").none(),
             nb::sig("def pickle_state(object: object) -> tuple[bytes, list[typing.Any]] | None"),
             "The pickle of plain containers and tensors, and their storages; None for anything else.");
  nb::class_<CheckpointObject>(module, "CheckpointFile", "A checkpoint file opened for reading: see headrace.open.")
      .def("__init__", &construct, nb::arg("handle"), nb::arg("path"), nb::arg("verify") = "auto",
           nb::sig("def __init__(self, handle: Handle, path: headrace._types.Path, verify: str = \"auto\") -> None"))
      .def_prop_ro(
          "name", [](const CheckpointObject& self) { return self.name; },
          nb::sig("def name(self) -> headrace._types.Path"))
      .def_prop_ro("format",
                   [](const CheckpointObject& self) { return std::string(checkpoint_format_name(self.file.format())); })
      .def_prop_ro("file_bytes", [](const CheckpointObject& self) { return self.file.file_bytes(); })
      .def(
          "fileno", [](const CheckpointObject& self) { return self.file.descriptor(); },
          nb::sig("def fileno(self) -> int"), "The descriptor of the open file, which stays this object's.")
      .def_prop_ro("little_endian", [](const CheckpointObject& self) { return self.file.little_endian(); })
      .def_prop_ro("metadata", &metadata_of, nb::sig("def metadata(self) -> dict[str, str] | None"))
      .def_prop_ro("pickle",
                   [](const CheckpointObject& self) {
                     const std::string_view bytes = self.file.pickle_bytes();
                     return nb::bytes(bytes.data(), bytes.size());
                   })
      .def("storages", &storages_of,
           nb::sig("def storages(self) -> list[tuple[str, int, int, int | None, str | None, str | None]]"),
           "(key, offset, bytes, crc32, dtype, location) each.")
      .def("tensors", &tensors_of,
           nb::sig("def tensors(self) -> list[tuple[str, str, list[int], list[int], int, int, int, bool, bool, str]]"),
           "(name, dtype, shape, strides, storage, offset in it, bytes, contiguous, requires_grad, conj and neg) each.")
      .def("globals", &globals_of, nb::arg("known"), nb::sig("def globals(self, known: bool) -> list[str]"),
           "The names that the pickle refers to: those that weights_only admits, or the others.")
      .def("load", &load_storages, nb::arg("handle"), nb::arg("storages"), nb::arg("verify"),
           nb::sig("def load(self, handle: Handle, storages: list[int], verify: str) -> tuple[list[tuple[int, int, "
                   "int]], list[Buffer]]"),
           "Whole storages into new memory: (index of the memory, offset in it, bytes) each, and the memories.")
      .def("read", &read_storages, nb::arg("handle"), nb::arg("reads"), nb::arg("verify"),
           nb::sig("def read(self, handle: Handle, reads: list[tuple[int, int, int, int]], verify: str) -> None"),
           "Ranges of storages into memory: (storage, offset in it, address, bytes) each.")
      .def("replay", &replay, nb::arg("table"), nb::arg("storages"), nb::arg("build"), nb::arg("empty_like"),
           nb::sig("def replay(self, table: dict[str, object], storages: list[object], build: object, empty_like: "
                   "object) -> object"),
           "Makes the pickle's object from the globals in `table`; `build` applies a state to an object, `empty_like` "
           "gives a storage without bytes the dtype of a reference to it.");
}

}  // namespace headrace::python
