// SPDX-License-Identifier: Apache-2.0
// The index of living buffers: one map per process, found by process id so that a lock held during fork binds no child.
// Any thread.
// The map is process-wide, since callers pass bare addresses; it is never destroyed, since buffers may outlive main().
#include "memory/buffer_storage.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <shared_mutex>
#include <utility>

namespace headrace::memory {
namespace {

struct Index {
  explicit Index(pid_t owner) : process(owner) {}
  const pid_t process;
  std::shared_mutex mutex;
  std::map<uintptr_t, std::weak_ptr<BufferStorage>> buffers;  // by first address; guarded by mutex
  std::atomic<uint64_t> count = 0;                            // of buffers: lets find_buffer skip the lock
};

std::atomic<Index*> current_index = nullptr;
std::atomic<uint64_t> next_buffer_id = 1;

// Null when there is none yet and `make` is false.
Index* index_of_this_process(bool make) {
  const pid_t process = os::process_id();
  Index* index = current_index.load(std::memory_order_acquire);
  while (index == nullptr || index->process != process) {
    if (!make) return nullptr;
    auto fresh = std::make_unique<Index>(process);
    // A parent's index, seen in a child, is left where it is: its lock may have been held at the fork.
    if (current_index.compare_exchange_strong(index, fresh.get(), std::memory_order_acq_rel)) return fresh.release();
  }
  return index;
}

}  // namespace

Result<std::shared_ptr<BufferStorage>> BufferStorage::create(uint64_t bytes, const BufferOptions& options) {
  Result<os::Mapping> mapping = os::Mapping::create(bytes, options.pages, os::ForkPolicy::inherit);
  if (!mapping) return std::unexpected(std::move(mapping).error());
  const bool locked = options.lock == BufferOptions::Lock::if_allowed && mapping->lock();
  auto storage = std::make_shared<BufferStorage>(*std::move(mapping), bytes, locked,
                                                 next_buffer_id.fetch_add(1, std::memory_order_relaxed));
  if (bytes != 0) {
    Index& index = *index_of_this_process(true);
    const std::unique_lock lock(index.mutex);
    index.buffers[reinterpret_cast<uintptr_t>(storage->data())] = storage;
    index.count.store(index.buffers.size(), std::memory_order_release);
  }
  return storage;
}

BufferStorage::BufferStorage(os::Mapping mapping, uint64_t bytes, bool locked, uint64_t id) noexcept
    : mapping_(std::move(mapping)), bytes_(bytes), locked_(locked), id_(id) {}

BufferStorage::~BufferStorage() {
  if (bytes_ == 0 || process_ != os::process_id()) return;
  {
    Index& index = *index_of_this_process(true);
    const std::unique_lock lock(index.mutex);
    index.buffers.erase(reinterpret_cast<uintptr_t>(data()));
    index.count.store(index.buffers.size(), std::memory_order_release);
  }
  for (const std::weak_ptr<BufferWatcher>& entry : watchers_) {
    if (const std::shared_ptr<BufferWatcher> watcher = entry.lock()) watcher->buffer_gone(id_);
  }
}

void BufferStorage::watch(const std::shared_ptr<BufferWatcher>& watcher) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watchers_, [](const auto& entry) { return entry.expired(); });
  const bool known = std::ranges::any_of(
      watchers_, [&](const auto& entry) { return !entry.owner_before(watcher) && !watcher.owner_before(entry); });
  if (!known) watchers_.emplace_back(watcher);
}

std::shared_ptr<BufferStorage> find_buffer(const void* data, uint64_t bytes) noexcept {
  Index* index = current_index.load(std::memory_order_acquire);
  if (index == nullptr || index->count.load(std::memory_order_acquire) == 0) return nullptr;
  index = index_of_this_process(false);
  if (index == nullptr) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(data);
  // Declared before the lock, so that a buffer whose last owner lets go meanwhile dies after it: its end takes the lock.
  std::shared_ptr<BufferStorage> storage;
  const std::shared_lock lock(index->mutex);
  auto next = index->buffers.upper_bound(address);
  if (next == index->buffers.begin()) return nullptr;
  storage = std::prev(next)->second.lock();
  if (storage == nullptr) return nullptr;
  const uint64_t skipped = address - reinterpret_cast<uintptr_t>(storage->data());
  if (skipped > storage->mapped_bytes() || bytes > storage->mapped_bytes() - skipped) return nullptr;
  return storage;
}

}  // namespace headrace::memory
