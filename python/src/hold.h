// SPDX-License-Identifier: Apache-2.0
// What keeps the caller's memory in place while a transfer runs: references to its owners and exported buffers, so that a
// bytearray cannot be resized meanwhile. Needs the GIL, except where a comment says otherwise.
// Belongs to the Python Transfer; when that dies first, to the C++ transfer, which lets go of it on the dispatcher thread.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include <nanobind/nanobind.h>

#include <headrace/transfer.h>

namespace headrace::python {

namespace nb = nanobind;

class Hold;

// The holds of one handle whose transfers may still run.
using HoldList = std::list<Hold*>;

class Hold {
 public:
  Hold() = default;
  ~Hold() { release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void keep(nb::object owner) { owners_.push_back(std::move(owner)); }
  // Exports and keeps a buffer. Raises what the exporter raises.
  Py_buffer& keep_buffer(nb::handle exporter, int flags);
  // Gives back the buffer exported last.
  void drop_last_buffer() noexcept;
  // A torch tensor that the transfer writes into.
  void keep_target_tensor(nb::object tensor) { target_tensors_.push_back(std::move(tensor)); }

  // The transfer was accepted: from here on `list` knows the hold.
  void start(const Transfer& transfer, bool is_read, std::shared_ptr<HoldList> list);
  // The transfer is done: tells torch that the targets changed, then lets go of everything.
  void finish();
  // Lets go of everything. Safe to call twice.
  void release() noexcept;

  [[nodiscard]] bool is_read() const noexcept { return is_read_; }
  [[nodiscard]] const Transfer& transfer() const noexcept { return transfer_; }
  // For the garbage collector.
  int traverse(visitproc visit, void* arg) const;

 private:
  void unlink() noexcept;
  void bump_versions() noexcept;

  std::vector<nb::object> owners_;
  std::vector<std::unique_ptr<Py_buffer>> buffers_;
  std::vector<nb::object> target_tensors_;
  Transfer transfer_;
  bool is_read_ = false;
  std::shared_ptr<HoldList> list_;
  HoldList::iterator place_;
};

// Hands `hold` to its transfer, for when no Python object is left to own it. No-op for a null pointer.
void hand_over(std::unique_ptr<Hold> hold) noexcept;

// For a list whose transfers are done: the handle was closed.
void release_finished(HoldList& list);

// Aborts the reads of the list.
void abort_reads(const HoldList& list) noexcept;

}  // namespace headrace::python
