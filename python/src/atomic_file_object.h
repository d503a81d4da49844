// SPDX-License-Identifier: Apache-2.0
// headrace.AtomicFile: what Handle.replace returns, a context manager over headrace::AtomicFile.
// Needs the GIL; it is released around waits and system calls. Any Python thread may write, commit and discard.
// Owns the temporary file and a share of the state of every write into it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include <headrace/atomic_file.h>
#include <headrace/transfer.h>

namespace headrace::python {

namespace nb = nanobind;

class AtomicFileObject {
 public:
  AtomicFileObject(AtomicFile file, nb::object path, uint64_t size_bytes);
  ~AtomicFileObject();
  AtomicFileObject(const AtomicFileObject&) = delete;
  AtomicFileObject& operator=(const AtomicFileObject&) = delete;
  AtomicFileObject(AtomicFileObject&& other) noexcept;

  // Raises ClosedError after commit or discard, and in a forked child.
  [[nodiscard]] const File& file() const;
  [[nodiscard]] const nb::object& path() const noexcept { return path_; }
  [[nodiscard]] uint64_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] std::string temporary_path() const;

  // Raises ValueError for a range that leaves the file.
  void check_range(uint64_t offset_bytes, uint64_t bytes) const;
  // Another final length.
  void resize(uint64_t size_bytes);
  // Those that are done and went well are forgotten now and then.
  void add_write(const Transfer& write);

  // Waits for the writes, then makes the file appear. On any failure nothing is left behind.
  void commit();
  // Aborts the writes, waits for them, removes the temporary file. Does nothing after commit() or discard().
  void discard();

 private:
  struct Parts {
    std::shared_ptr<AtomicFile> atomic;
    std::vector<Transfer> writes;
  };
  // What commit() and discard() work on: while they wait without the GIL, other threads find this object closed.
  [[nodiscard]] Parts take();
  static void remove(Parts& parts) noexcept;

  std::shared_ptr<AtomicFile> atomic_;  // shared with a resize() under way in another thread
  nb::object path_;
  uint64_t size_bytes_;
  uint32_t generation_;
  std::vector<Transfer> writes_;
  size_t writes_looked_at_ = 64;  // how many make it worth while to look for those that are done
};

void bind_atomic_file(nb::module_& module);

}  // namespace headrace::python
