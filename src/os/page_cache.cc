// SPDX-License-Identifier: Apache-2.0
// cachestat by number, because Debian 12's headers lack it; samples by preadv2(RWF_NOWAIT), which answers EAGAIN for
// a page that is not there. mincore would not do: it reports everything resident to those who may not write the file.
// Any thread. Owns nothing.
#include "os/page_cache.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "os/direct_io.h"

namespace headrace::os {
namespace {

constexpr long kCachestat = 451;  // the same number on every architecture
struct CachestatRange {
  uint64_t offset, length;
};
struct Cachestat {
  uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

std::optional<uint64_t> sample(int descriptor, uint64_t offset, uint64_t length) noexcept {
  constexpr uint64_t kSamples = 16;
  uint64_t resident = 0;
  for (uint64_t i = 0; i < kSamples; ++i) {
    std::byte byte;
    const iovec target = {.iov_base = &byte, .iov_len = 1};
    const uint64_t position = offset + length / kSamples * i;
    const ssize_t got = ::preadv2(descriptor, &target, 1, static_cast<off_t>(position), RWF_NOWAIT);
    if (got == 1) ++resident;
    if (got < 0 && errno != EAGAIN) return std::nullopt;
  }
  return length / kSamples * resident;
}

}  // namespace

std::optional<uint64_t> resident_bytes(int descriptor, uint64_t offset, uint64_t length) noexcept {
  if (length == 0) return 0;
  const CachestatRange range = {.offset = offset, .length = length};
  Cachestat counts = {};
  if (::syscall(kCachestat, descriptor, &range, &counts, 0) == 0) {
    return std::min(length, counts.cached * page_bytes());
  }
  if (errno != ENOSYS && errno != EPERM) return std::nullopt;
  return sample(descriptor, offset, length);
}

int drop_from_cache(int descriptor) noexcept {
  int rc = 0;
  do {
    rc = ::fdatasync(descriptor);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0 && errno != EINVAL && errno != EROFS) return -errno;  // these two: there is nothing to write out
  return -::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace headrace::os
