// SPDX-License-Identifier: Apache-2.0
// What Buffer shares: one mapping, findable by address, and a list of those to tell when it dies.
// Any thread.
// Owned by Buffers and by the transfers in flight that use it; freed when the last of them lets go.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <headrace/buffer.h>

#include "os/mapping.h"
#include "os/process_id.h"

namespace headrace::memory {

// Told that memory registered with the kernel under this id is gone, so that its slots can be given up. The kernel keeps
// the pages until then; the id is never used again, so a new buffer at the same address is never mistaken for the old.
class BufferWatcher {
 public:
  virtual ~BufferWatcher() = default;
  // On the thread that dropped the buffer.
  virtual void buffer_gone(uint64_t buffer_id) noexcept = 0;
};

class BufferStorage {
 public:
  [[nodiscard]] static Result<std::shared_ptr<BufferStorage>> create(uint64_t bytes, const BufferOptions& options);

  // Use create(): a storage made otherwise cannot be found.
  BufferStorage(os::Mapping mapping, uint64_t bytes, bool locked, BufferOptions::Register registration,
                uint64_t id) noexcept;
  ~BufferStorage();
  BufferStorage(const BufferStorage&) = delete;
  BufferStorage& operator=(const BufferStorage&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return mapping_.data(); }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] uint64_t mapped_bytes() const noexcept { return mapping_.bytes(); }
  [[nodiscard]] bool locked() const noexcept { return locked_; }
  [[nodiscard]] BufferOptions::Register registration() const noexcept { return registration_; }
  [[nodiscard]] uint64_t id() const noexcept { return id_; }
  [[nodiscard]] PageKind pages() const noexcept { return mapping_.pages(); }
  [[nodiscard]] uint64_t huge_bytes() const { return mapping_.huge_bytes(); }

  // Each watcher is told at most once, however often it asks.
  void watch(const std::shared_ptr<BufferWatcher>& watcher);

 private:
  os::Mapping mapping_;
  uint64_t bytes_;  // as asked for; the mapping is rounded up
  bool locked_;
  BufferOptions::Register registration_;
  uint64_t id_;
  pid_t process_ = os::process_id();
  std::mutex mutex_;
  std::vector<std::weak_ptr<BufferWatcher>> watchers_;
};

// The living buffer that holds all of [data, data + bytes), or null. A child made by fork finds none of its parent's
// buffers: their registration with rings belongs to the parent.
[[nodiscard]] std::shared_ptr<BufferStorage> find_buffer(const void* data, uint64_t bytes) noexcept;

}  // namespace headrace::memory
