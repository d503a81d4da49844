// SPDX-License-Identifier: Apache-2.0
// The index of living buffers: one map per process.
// Any thread.
// The map is process-wide, since callers pass bare addresses; it is never destroyed, since buffers may outlive main().
#include "memory/buffer_storage.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <shared_mutex>
#include <utility>

#include "os/per_process.h"

namespace headrace::memory {
namespace {

struct Index {
  std::shared_mutex mutex;
  std::map<uintptr_t, std::weak_ptr<BufferStorage>> buffers;  // by first address; guarded by mutex
  std::atomic<uint64_t> count = 0;                            // of buffers: lets find_buffer skip the lock
};

os::PerProcess<Index> index_of_this_process;
std::atomic<uint64_t> next_buffer_id = 1;

}  // namespace

Result<std::shared_ptr<BufferStorage>> BufferStorage::create(uint64_t bytes, const BufferOptions& options) {
  Result<os::Mapping> mapping = os::Mapping::create(bytes, options.pages, os::ForkPolicy::inherit);
  if (!mapping) return std::unexpected(std::move(mapping).error());
  const bool locked = options.lock == BufferOptions::Lock::if_allowed && mapping->lock();
  auto storage = std::make_shared<BufferStorage>(*std::move(mapping), bytes, locked, options.registration,
                                                 next_buffer_id.fetch_add(1, std::memory_order_relaxed));
  if (bytes != 0) {
    Index& index = index_of_this_process.get();
    const std::unique_lock lock(index.mutex);
    index.buffers[reinterpret_cast<uintptr_t>(storage->data())] = storage;
    index.count.store(index.buffers.size(), std::memory_order_release);
  }
  return storage;
}

BufferStorage::BufferStorage(os::Mapping mapping, uint64_t bytes, bool locked, BufferOptions::Register registration,
                             uint64_t id) noexcept
    : mapping_(std::move(mapping)), bytes_(bytes), locked_(locked), registration_(registration), id_(id) {}

BufferStorage::~BufferStorage() {
  if (bytes_ == 0 || process_ != os::process_id()) return;
  {
    Index& index = index_of_this_process.get();
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
  Index* index = index_of_this_process.find();
  if (index == nullptr || index->count.load(std::memory_order_acquire) == 0) return nullptr;
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
