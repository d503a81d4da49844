// SPDX-License-Identifier: Apache-2.0
// mmap with over-reservation for alignment; MADV_HUGEPAGE or MAP_HUGETLB; mlock2(MLOCK_ONFAULT).
// One thread makes and drops a Mapping.
// Owns the address range.
#include "os/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/align.h"
#include "os/direct_io.h"
#include "os/error.h"

namespace headrace::os {
namespace {

Error out_of_memory(uint64_t bytes, int errno_value, const char* advice) {
  Error error = system_error("allocate", {}, errno_value);
  error.detail = fmt::format("{} bytes were asked for{}{}", bytes, *advice == '\0' ? "" : "; ", advice);
  return error;
}

}  // namespace

Result<Mapping> Mapping::create(uint64_t bytes, PageKind pages, ForkPolicy fork_policy) {
  Mapping mapping;
  mapping.pages_ = pages == PageKind::unknown ? PageKind::small : pages;
  if (bytes == 0) return mapping;
  if (bytes > (uint64_t{1} << 47)) {
    return std::unexpected(out_of_memory(bytes, ENOMEM, "no address space holds that many"));
  }
  const uint64_t guard = page_bytes();
  const uint64_t rounding = pages == PageKind::reserved ? kHugePageBytes : guard;
  const uint64_t rounded = base::align_up(bytes, rounding);
  const uint64_t reserve = rounded + kHugePageBytes + 2 * guard;
  void* base = ::mmap(nullptr, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return std::unexpected(out_of_memory(bytes, errno, "the address space limit (ulimit -v) may be in the way"));
  mapping.base_ = static_cast<std::byte*>(base);
  mapping.reserved_bytes_ = reserve;
  const uint64_t start = base::align_up(reinterpret_cast<uintptr_t>(base) + guard, kHugePageBytes);
  auto* data = reinterpret_cast<std::byte*>(start);
  const int huge = pages == PageKind::reserved ? MAP_HUGETLB : 0;
  if (::mmap(data, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | huge, -1, 0) ==
      MAP_FAILED) {
    const int errno_value = errno;  // the destructor of `mapping` makes system calls
    return std::unexpected(out_of_memory(
        bytes, errno_value,
        huge != 0 ? "not enough pages in the hugetlb pool: raise vm.nr_hugepages, or use transparent huge pages"
                  : "free memory, or ask for less"));
  }
  mapping.data_ = data;
  mapping.bytes_ = rounded;
  // Both pieces of advice are wishes: a kernel built without them still gives memory that works.
  if (pages == PageKind::transparent && ::madvise(data, rounded, MADV_HUGEPAGE) != 0) mapping.pages_ = PageKind::small;
  if (fork_policy == ForkPolicy::keep_out_of_children) (void)::madvise(data, rounded, MADV_DONTFORK);
  return mapping;
}

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      reserved_bytes_(std::exchange(other.reserved_bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      pages_(other.pages_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    unmap();
    base_ = std::exchange(other.base_, nullptr);
    reserved_bytes_ = std::exchange(other.reserved_bytes_, 0);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    pages_ = other.pages_;
  }
  return *this;
}

Mapping::~Mapping() { unmap(); }

void Mapping::unmap() noexcept {
  if (base_ != nullptr) ::munmap(base_, reserved_bytes_);
  base_ = nullptr;
}

bool Mapping::lock() noexcept { return bytes_ == 0 || ::mlock2(data_, bytes_, MLOCK_ONFAULT) == 0; }

uint64_t Mapping::huge_bytes() const {
  if (pages_ == PageKind::reserved) return bytes_;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/smaps", "re"), &std::fclose);
  if (file == nullptr) return 0;
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  const uintptr_t end = begin + bytes_;
  uint64_t huge = 0;
  bool inside = false;
  char line[512];
  while (std::fgets(line, sizeof line, file.get()) != nullptr) {
    uintptr_t first = 0;
    uintptr_t last = 0;
    uint64_t kib = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &first, &last) == 2) {
      inside = first >= begin && last <= end;
    } else if (inside && std::sscanf(line, "AnonHugePages: %" SCNu64 " kB", &kib) == 1) {
      huge += kib << 10;
    }
  }
  return huge;
}

}  // namespace headrace::os
