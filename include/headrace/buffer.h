// SPDX-License-Identifier: Apache-2.0
// Memory that the disk likes: 2 MiB aligned, on huge pages where the system gives them, locked where the limit allows.
// Any thread may make, share and drop a Buffer; the bytes are the caller's to synchronise.
// Copies share one allocation, which is freed the way it was taken when the last copy and the last transfer let go.
#pragma once

#include <cstdint>
#include <memory>

#include <headrace/error.h>
#include <headrace/region.h>

namespace headrace {

enum class PageKind : uint8_t {
  unknown,      // memory this library did not allocate
  small,        // the base page size
  transparent,  // transparent huge pages (MADV_HUGEPAGE)
  reserved,     // pages from the hugetlb pool (MAP_HUGETLB)
};

// "unknown", "small", "transparent", "reserved".
HEADRACE_EXPORT const char* page_kind_name(PageKind kind) noexcept;

struct BufferOptions {
  // `reserved` asks for hugetlb pages and fails with ENOMEM when the pool is empty; `small` asks for none.
  PageKind pages = PageKind::transparent;
  // Lock pages as they are touched (mlock2 with MLOCK_ONFAULT). A refusal is not an error: `locked()` tells.
  enum class Lock : uint8_t { if_allowed, never } lock = Lock::if_allowed;
  // Register with the ring of a handle that uses it, which pins the pages until the Buffer dies: for memory that is used
  // again and again. `never`: for memory that is filled once and then belongs to somebody else.
  enum class Register : uint8_t { when_used, never } registration = Register::when_used;
};

namespace memory {
class BufferStorage;
}

class HEADRACE_EXPORT Buffer {
 public:
  // Zero-filled bytes. Zero size is allowed. Pages are taken when first touched. ENOMEM, or EINVAL for a size that no
  // address space holds, come back as errors.
  [[nodiscard]] static Result<Buffer> create(uint64_t bytes, const BufferOptions& options = {});

  Buffer() noexcept;
  ~Buffer();
  Buffer(const Buffer&);
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(const Buffer&);
  Buffer& operator=(Buffer&&) noexcept;

  [[nodiscard]] std::byte* data() const noexcept;
  [[nodiscard]] uint64_t bytes() const noexcept;
  [[nodiscard]] Region region() const noexcept { return {data(), bytes(), {}}; }
  [[nodiscard]] bool locked() const noexcept;
  // What was asked for and granted. Transparent huge pages are granted page by page at first touch, so
  // `huge_bytes()` is the measured answer: bytes now on huge pages, read from the kernel's page tables.
  [[nodiscard]] PageKind pages() const noexcept;
  [[nodiscard]] uint64_t huge_bytes() const;

  // True when all of [data, data + bytes) lies inside one living Buffer whose pages are locked.
  [[nodiscard]] static bool is_locked(const void* data, uint64_t bytes) noexcept;

 private:
  std::shared_ptr<memory::BufferStorage> storage_;
};

}  // namespace headrace
