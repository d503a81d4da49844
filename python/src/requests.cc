// SPDX-License-Identifier: Apache-2.0
// See requests.h. Everything is checked before a file is opened, because opening one may create or cut it.
// Threads as requests.h says.
// Owners as requests.h says.
#include "requests.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "atomic_file_object.h"
#include "errors.h"
#include "file_object.h"
#include "memory_argument.h"
#include "options.h"
#include "transfer_object.h"

namespace headrace::python {

namespace {

using Word = const std::string&;
using OptionalWord = const std::optional<std::string>&;

// The memory of one request, and who keeps it.
struct Memory {
  std::unique_ptr<Hold> hold = std::make_unique<Hold>();
  std::vector<Span> spans;
  std::vector<Region> targets;
  std::vector<ConstRegion> sources;
  uint64_t bytes = 0;

  Memory(nb::handle argument, Access access) {
    add_memory(argument, access, *hold, spans);
    bytes = total_bytes(spans);
    for (const Span& span : spans) {
      if (access == Access::target) targets.push_back({span.data, span.bytes});
      if (access == Access::source) sources.push_back({span.data, span.bytes});
    }
  }
};

void check_end(uint64_t offset_bytes, uint64_t bytes) {
  if (bytes > static_cast<uint64_t>(INT64_MAX) - offset_bytes) {
    refuse(PyExc_ValueError, "the range of %llu bytes at offset %llu ends beyond what a file offset can name",
           static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(offset_bytes));
  }
}

// The options that all reads of one call share.
ReadRequest read_options(bool partial, int64_t priority, Word copy, Word cache) {
  ReadRequest request;
  request.priority = check_priority(priority);
  request.copy = parse_copy(copy);
  request.cache = parse_cache(cache);
  request.end_of_file = partial ? EndOfFile::is_a_count : EndOfFile::is_an_error;
  return request;
}

WriteRequest write_options(OptionalWord durability, Durability otherwise, int64_t priority, Word copy) {
  WriteRequest request;
  request.priority = check_priority(priority);
  request.copy = parse_copy(copy);
  request.durability = parse_durability(durability, otherwise);
  return request;
}

// A file is cut by the request, once that is accepted, not by opening it.
FileMode file_mode(WriteMode mode) { return mode == WriteMode::create ? FileMode::create : FileMode::update; }
Truncate truncation(WriteMode mode) { return mode == WriteMode::truncate ? Truncate::at_start : Truncate::no; }

TransferObject wrap(HandleObject& self, const Transfer& transfer, std::unique_ptr<Hold> hold, bool is_read,
                    Asked asked) {
  hold->start(transfer, is_read, self.holds());
  return {transfer, std::move(hold), std::move(asked)};
}

TransferObject read(HandleObject& self, nb::handle file, nb::handle into, nb::handle offset, bool partial,
                    int64_t priority, Word copy, Word cache) {
  Handle& handle = self.open_handle();
  ReadRequest request = read_options(partial, priority, copy, cache);
  request.offset_bytes = whole_number("offset", offset);
  Memory memory(into, Access::target);
  check_end(request.offset_bytes, memory.bytes);
  refuse_overlap(memory.spans);
  request.targets = memory.targets;
  const FileArgument target = open_file_argument(file, FileMode::read, false);
  auto transfer = without_gil([&] { return handle.read(target.file, request); });
  if (!transfer) raise(transfer.error(), target.name);
  return wrap(self, *transfer, std::move(memory.hold), true, {"read", target.name, request.offset_bytes, memory.bytes});
}

TransferObject replace_whole(HandleObject& self, nb::handle file, Memory memory, const WriteRequest& request) {
  if (!is_path(file)) refuse(PyExc_ValueError, "mode='replace' is for paths: this file is already open");
  if (request.offset_bytes != 0) refuse(PyExc_ValueError, "mode='replace' writes the whole file: offset must be 0");
  const std::string path = path_bytes(file);
  Handle& handle = self.open_handle();
  auto transfer = without_gil([&] { return handle.replace(path, request); });
  if (!transfer) raise(transfer.error(), file);
  return wrap(self, *transfer, std::move(memory.hold), false, {"write", nb::borrow(file), 0, memory.bytes});
}

TransferObject write(HandleObject& self, nb::handle file, nb::handle data, nb::handle offset, OptionalWord mode,
                     OptionalWord durability, int64_t priority, Word copy) {
  Handle& handle = self.open_handle();
  const WriteMode write_mode = parse_write_mode(mode.value_or("update"));
  const bool replaces = write_mode == WriteMode::replace;
  WriteRequest request = write_options(durability, replaces ? Durability::data : Durability::none, priority, copy);
  request.offset_bytes = whole_number("offset", offset);
  request.truncate = truncation(write_mode);
  Memory memory(data, Access::source);
  check_end(request.offset_bytes, memory.bytes);
  request.sources = memory.sources;
  if (replaces) return replace_whole(self, file, std::move(memory), request);

  const FileArgument target = open_file_argument(file, file_mode(write_mode), mode && *mode != "update");
  if (target.atomic != nullptr) target.atomic->check_range(request.offset_bytes, memory.bytes);
  auto transfer = without_gil([&] { return handle.write(target.file, request); });
  if (!transfer) raise(transfer.error(), target.name);
  if (target.atomic != nullptr) target.atomic->add_write(*transfer);
  return wrap(self, *transfer, std::move(memory.hold), false,
              {"write", target.name, request.offset_bytes, memory.bytes});
}

// One (file, memory) or (file, memory, offset) of a bulk call.
struct Item {
  nb::object file;
  Memory memory;
  uint64_t offset_bytes;

  static Item from(nb::handle object, Access access) {
    const bool fits = PyTuple_Check(object.ptr()) != 0 || PyList_Check(object.ptr()) != 0;
    const size_t length = fits ? nb::len(object) : 0;
    if (length != 2 && length != 3)
      refuse(PyExc_TypeError, "an item must be (file, memory) or (file, memory, offset), not %R", object.ptr());
    const nb::object memory = object[1];
    const nb::object offset = length == 3 ? nb::object(object[2]) : nb::object(nb::int_(0));
    Item item{nb::object(object[0]), Memory(memory, access), whole_number("offset", offset)};
    check_end(item.offset_bytes, item.memory.bytes);
    return item;
  }
};

std::vector<Item> take_items(nb::handle items, Access access) {
  std::vector<Item> taken;
  for (nb::handle object : nb::iter(items))
    taken.push_back(Item::from(object, access));
  return taken;
}

// The files of one bulk call: each opened once, however many items name it.
class OpenedFiles {
 public:
  OpenedFiles(FileMode mode, bool mode_given) : mode_(mode), mode_given_(mode_given) {}

  const FileArgument& get(nb::handle file) {
    if (nb::isinstance<FileObject>(file) || nb::isinstance<AtomicFileObject>(file)) {
      return find_or_open(by_object_, file.ptr(), file);
    }
    return is_path(file) ? find_or_open(by_path_, path_bytes(file), file)
                         : find_or_open(by_number_, nb::cast<int64_t>(nb::int_(file)), file);
  }

  // The caller's own name for the file that an error is about; null when several could be meant.
  [[nodiscard]] nb::handle name_for(const Error& error) const {
    const auto found = by_path_.find(error.path);
    if (found != by_path_.end()) return found->second.name;
    const size_t files = by_path_.size() + by_object_.size() + by_number_.size();
    if (files != 1) return {};
    if (!by_path_.empty()) return by_path_.begin()->second.name;
    return by_object_.empty() ? by_number_.begin()->second.name : by_object_.begin()->second.name;
  }

 private:
  template <class Key>
  const FileArgument& find_or_open(std::map<Key, FileArgument>& known, const Key& key, nb::handle file) {
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
    try {
      return known.emplace(key, open_file_argument(file, mode_, mode_given_)).first->second;
    } catch (nb::python_error&) {
      for (const auto& [path, opened] : by_path_)
        opened.file.give_up();
      throw;
    }
  }

  FileMode mode_;
  bool mode_given_;
  std::map<std::string, FileArgument> by_path_;
  std::map<PyObject*, FileArgument> by_object_;
  std::map<int64_t, FileArgument> by_number_;
};

// All holds are tied to their transfers before any Python object is made, which may fail.
nb::list wrap_all(HandleObject& self, const std::vector<Transfer>& started, std::vector<Item>& items,
                  const std::vector<const FileArgument*>& files, const char* operation) {
  const bool is_read = std::string_view(operation) == "read";
  std::vector<TransferObject> wrapped;
  wrapped.reserve(started.size());
  for (size_t i = 0; i < started.size(); ++i) {
    wrapped.push_back(wrap(self, started[i], std::move(items[i].memory.hold), is_read,
                           {operation, nb::borrow(files[i]->name), items[i].offset_bytes, items[i].memory.bytes}));
  }
  nb::list transfers;
  for (TransferObject& transfer : wrapped)
    transfers.append(nb::cast(std::move(transfer)));
  return transfers;
}

// What a signal handler raised while a bulk call waited for room. The transfers that had room hold their memory first.
class PendingSignal {
 public:
  PendingSignal() {
    if (PyErr_Occurred() != nullptr) raised_.emplace();
  }
  void rethrow() {
    if (raised_) throw nb::python_error(*std::move(raised_));
  }

 private:
  std::optional<nb::python_error> raised_;
};

nb::list read_many(HandleObject& self, nb::handle items, bool partial, int64_t priority, Word copy, Word cache) {
  self.open_handle();
  const ReadRequest options = read_options(partial, priority, copy, cache);
  std::vector<Item> taken = take_items(items, Access::target);
  std::vector<Span> all_targets;
  for (const Item& item : taken)
    all_targets.insert(all_targets.end(), item.memory.spans.begin(), item.memory.spans.end());
  refuse_overlap(all_targets);

  OpenedFiles files(FileMode::read, false);
  std::vector<ReadItem> requests;
  std::vector<const FileArgument*> sources;
  for (const Item& item : taken) {
    const FileArgument& source = files.get(item.file);
    ReadItem& request = requests.emplace_back(source.file, options);
    request.request.offset_bytes = item.offset_bytes;
    request.request.targets = item.memory.targets;
    sources.push_back(&source);
  }
  if (requests.empty()) return {};
  Handle& handle = self.open_handle();
  auto started = without_gil([&] { return handle.read_many(requests); });
  if (!started) raise(started.error(), files.name_for(started.error()));
  PendingSignal signal;
  nb::list transfers = wrap_all(self, *started, taken, sources, "read");
  signal.rethrow();
  return transfers;
}

nb::list write_many(HandleObject& self, nb::handle items, OptionalWord mode, OptionalWord durability, int64_t priority,
                    Word copy) {
  self.open_handle();
  const WriteMode write_mode = parse_write_mode(mode.value_or("update"));
  if (write_mode == WriteMode::replace) {
    refuse(PyExc_ValueError,
           "write_many cannot replace: write into the file that Handle.replace(path, size=...) returns");
  }
  WriteRequest options = write_options(durability, Durability::none, priority, copy);
  options.truncate = truncation(write_mode);
  std::vector<Item> taken = take_items(items, Access::source);

  OpenedFiles files(file_mode(write_mode), mode && *mode != "update");
  std::vector<WriteItem> requests;
  std::vector<const FileArgument*> targets;
  for (const Item& item : taken) {
    const FileArgument& target = files.get(item.file);
    if (target.atomic != nullptr) target.atomic->check_range(item.offset_bytes, item.memory.bytes);
    WriteItem& request = requests.emplace_back(target.file, options);
    request.request.offset_bytes = item.offset_bytes;
    request.request.sources = item.memory.sources;
    targets.push_back(&target);
  }
  if (requests.empty()) return {};
  Handle& handle = self.open_handle();
  auto started = without_gil([&] { return handle.write_many(requests); });
  if (!started) raise(started.error(), files.name_for(started.error()));
  PendingSignal signal;
  for (size_t i = 0; i < taken.size(); ++i) {
    if (targets[i]->atomic != nullptr) targets[i]->atomic->add_write((*started)[i]);
  }
  nb::list transfers = wrap_all(self, *started, taken, targets, "write");
  signal.rethrow();
  return transfers;
}

AtomicFileObject replace(HandleObject& self, nb::handle path, nb::handle size, Word durability) {
  self.open_handle();
  AtomicFileOptions options;
  options.size_bytes = whole_number("size", size);
  options.durability = parse_durability(durability, Durability::data);
  const std::string bytes = path_bytes(path);
  auto file = without_gil([&] {
    auto created = AtomicFile::create(bytes, options);
    if (created) sweep_temporaries_beside(bytes);
    return created;
  });
  if (!file) raise(file.error(), path);
  return {*std::move(file), nb::borrow(path), options.size_bytes};
}

constexpr const char* kReadDoc =
    R"(Starts to read into ``into`` from ``file`` at ``offset``, as many bytes as ``into`` has, and returns
a Transfer.

file      str, bytes, PathLike, an int descriptor, headrace.File or headrace.AtomicFile. Opened now.
into      A contiguous torch tensor, numpy array, writable buffer or DLPack tensor in host memory,
          of any shape and dtype; or a list of these, filled in order. Kept alive, and unresizable,
          until the transfer is done. Its old values are lost from now on.
offset    Bytes from the start of the file; no alignment is needed.
partial   True: a file that ends early gives a smaller count. False: it raises EndOfFileError.
priority  -128 to 127; higher goes first, block by block.
copy      "auto"; "always" through staging memory; "never".
cache     "auto": from the page cache when half or more of a large request sits there; "use";
          "bypass".

Raises TransferError (FileNotFoundError, PermissionError, ... are among its subclasses) when the
file cannot be opened, ValueError or TypeError for memory that cannot be filled: read-only, not
contiguous, on a GPU, meta, sparse, overlapping.)";

constexpr const char* kWriteDoc =
    R"(Starts to write all bytes of ``data`` to ``file`` at ``offset`` and returns a Transfer.

data        A torch tensor, numpy array, buffer or DLPack tensor in host memory; or a list of these,
            written in order. One that is not contiguous is copied now, its values in row-major
            order. Do not change it until the transfer is done.
mode        "update" (create if missing, never truncate; the default), "create" (must not exist),
            "truncate", or "replace": the whole file, atomically (temporary name, exact size, sync,
            rename, sync of the folder).
durability  "none", "data" (fdatasync before the transfer is done), or None: "data" for
            mode="replace", else "none".

file, offset, priority and copy as in read(). Bytes outside the range are never touched. A write
whose result nobody asks for and that fails raises when the handle closes.)";

}  // namespace

void bind_requests(nb::class_<HandleObject>& handle) {
  handle
      .def("read", &read, nb::arg("file").none(), nb::arg("into").none(), nb::kw_only(), nb::arg("offset") = 0,
           nb::arg("partial") = false, nb::arg("priority") = 0, nb::arg("copy") = "auto", nb::arg("cache") = "auto",
           nb::sig("def read(self, file: headrace._types.FileLike, into: headrace._types.Memory, *, offset: int = 0, "
                   "partial: bool = False, priority: int = 0, copy: headrace._types.Copy = 'auto', "
                   "cache: headrace._types.Cache = 'auto') -> Transfer"),
           kReadDoc)
      .def("write", &write, nb::arg("file").none(), nb::arg("data").none(), nb::kw_only(), nb::arg("offset") = 0,
           nb::arg("mode") = nb::none(), nb::arg("durability") = nb::none(), nb::arg("priority") = 0,
           nb::arg("copy") = "auto",
           nb::sig("def write(self, file: headrace._types.FileLike, data: headrace._types.Memory, *, offset: int = 0, "
                   "mode: headrace._types.WriteMode = 'update', durability: headrace._types.Durability | None = None, "
                   "priority: int = 0, copy: headrace._types.Copy = 'auto') -> Transfer"),
           kWriteDoc)
      .def("read_many", &read_many, nb::arg("items").none(), nb::kw_only(), nb::arg("partial") = false,
           nb::arg("priority") = 0, nb::arg("copy") = "auto", nb::arg("cache") = "auto",
           nb::sig(
               "def read_many(self, items: collections.abc.Iterable[headrace._types.Item], *, partial: bool = False, "
               "priority: int = 0, copy: headrace._types.Copy = 'auto', "
               "cache: headrace._types.Cache = 'auto') -> list[Transfer]"),
           R"(Starts many reads at once. ``items``: (file, into) or (file, into, offset). Returns a Transfer for
each, in their order.

Each file is opened once, and ranges of one file that touch each other move together. All items are
checked before any is started: an exception means that nothing was. Targets that overlap raise
ValueError. Options as in read().)")
      .def("write_many", &write_many, nb::arg("items").none(), nb::kw_only(), nb::arg("mode") = nb::none(),
           nb::arg("durability") = nb::none(), nb::arg("priority") = 0, nb::arg("copy") = "auto",
           nb::sig(
               "def write_many(self, items: collections.abc.Iterable[headrace._types.Item], *, "
               "mode: headrace._types.FileWriteMode = 'update', durability: headrace._types.Durability | None = None, "
               "priority: int = 0, copy: headrace._types.Copy = 'auto') -> list[Transfer]"),
           R"(Starts many writes at once. ``items``: (file, data) or (file, data, offset). Returns a Transfer for
each, in their order.

Each file is opened once; with durability="data" it is synced once. Options as in write(), except
mode="replace": write into the file that replace() returns.)")
      .def("replace", &replace, nb::arg("path").none(), nb::kw_only(), nb::arg("size").none(),
           nb::arg("durability") = "data",
           nb::sig("def replace(self, path: headrace._types.Path, *, size: int, "
                   "durability: headrace._types.Durability = 'data') -> AtomicFile"),
           R"(A file of exactly ``size`` bytes to write into, which takes the place of ``path`` when its ``with``
block is left.

See AtomicFile. A full disk is reported here: the space is reserved now.)");
}

}  // namespace headrace::python
