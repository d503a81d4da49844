// SPDX-License-Identifier: Apache-2.0
// headrace.File, and from a Python file argument (path, descriptor, File, AtomicFile) to a headrace::File.
// Needs the GIL; it is released while files are opened.
// A FileObject owns a share of the open file; transfers own theirs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nanobind/nanobind.h>

#include <headrace/file.h>

namespace headrace::python {

namespace nb = nanobind;

class AtomicFileObject;

class FileObject {
 public:
  FileObject(File file, nb::object name, std::string mode)
      : file_(std::move(file)), name_(std::move(name)), mode_(std::move(mode)) {}

  // Raises ClosedError after close().
  [[nodiscard]] const File& file() const;
  [[nodiscard]] const nb::object& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& mode() const noexcept { return mode_; }
  [[nodiscard]] bool closed() const noexcept { return !file_.is_open(); }
  void close();

 private:
  File file_;
  nb::object name_;
  std::string mode_;
};

// What a request goes to.
struct FileArgument {
  File file;
  nb::object name;                     // as the caller gave it: `filename` of exceptions
  AtomicFileObject* atomic = nullptr;  // borrowed from the caller's argument; null for others
};

// The bytes of a str, bytes or PathLike. Raises TypeError for anything else.
std::string path_bytes(nb::handle path);

// True for what names a file by path, which is the only form that has a mode.
bool is_path(nb::handle file);

// Opens paths and descriptors. `mode` is for paths; `mode_given` says that the caller chose it, which nothing but a path allows.
FileArgument open_file_argument(nb::handle file, FileMode mode, bool mode_given);

void bind_file(nb::module_& module);

}  // namespace headrace::python
