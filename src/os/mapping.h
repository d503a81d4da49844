// SPDX-License-Identifier: Apache-2.0
// Anonymous memory from the kernel, 2 MiB aligned, between two guard pages so that it is one mapping of its own.
// One thread makes and drops it.
// Owns the address range.
#pragma once

#include <cstddef>
#include <cstdint>

#include <headrace/buffer.h>
#include <headrace/error.h>

namespace headrace::os {

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

enum class ForkPolicy : uint8_t { inherit, keep_out_of_children };

class Mapping {
 public:
  // ENOMEM comes back as an error. `pages` is what is asked for: unknown counts as small. Nothing is populated.
  [[nodiscard]] static Result<Mapping> create(uint64_t bytes, PageKind pages, ForkPolicy fork_policy);

  Mapping() noexcept = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] PageKind pages() const noexcept { return pages_; }

  // Locks pages as they are touched. False when the limit (RLIMIT_MEMLOCK) does not allow it.
  [[nodiscard]] bool lock() noexcept;
  // Bytes now backed by huge pages, from /proc/self/smaps.
  [[nodiscard]] uint64_t huge_bytes() const;

 private:
  void unmap() noexcept;

  std::byte* base_ = nullptr;  // of the whole reservation, guard pages included
  uint64_t reserved_bytes_ = 0;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  PageKind pages_ = PageKind::unknown;
};

}  // namespace headrace::os
