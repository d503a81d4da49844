// SPDX-License-Identifier: Apache-2.0
// The public face of BufferStorage.
// Any thread.
// A Buffer shares its storage.
#include <headrace/buffer.h>

#include <utility>

#include "memory/buffer_storage.h"

namespace headrace {

const char* page_kind_name(PageKind kind) noexcept {
  switch (kind) {
    case PageKind::unknown: return "unknown";
    case PageKind::small: return "small";
    case PageKind::transparent: return "transparent";
    case PageKind::reserved: return "reserved";
  }
  return "unknown";
}

Result<Buffer> Buffer::create(uint64_t bytes, const BufferOptions& options) {
  Result<std::shared_ptr<memory::BufferStorage>> storage = memory::BufferStorage::create(bytes, options);
  if (!storage) return std::unexpected(std::move(storage).error());
  Buffer buffer;
  buffer.storage_ = *std::move(storage);
  return buffer;
}

Buffer::Buffer() noexcept = default;
Buffer::~Buffer() = default;
Buffer::Buffer(const Buffer&) = default;
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(const Buffer&) = default;
Buffer& Buffer::operator=(Buffer&&) noexcept = default;

std::byte* Buffer::data() const noexcept { return storage_ ? storage_->data() : nullptr; }
uint64_t Buffer::bytes() const noexcept { return storage_ ? storage_->bytes() : 0; }
bool Buffer::locked() const noexcept { return storage_ && storage_->locked(); }
PageKind Buffer::pages() const noexcept { return storage_ ? storage_->pages() : PageKind::unknown; }
uint64_t Buffer::huge_bytes() const { return storage_ ? storage_->huge_bytes() : 0; }

bool Buffer::is_locked(const void* data, uint64_t bytes) noexcept {
  const std::shared_ptr<memory::BufferStorage> storage = memory::find_buffer(data, bytes);
  return storage != nullptr && storage->locked();
}

}  // namespace headrace
