// SPDX-License-Identifier: Apache-2.0
// statx STATX_DIOALIGN (Linux 6.1; 6.14 adds the read side), else the logical sector size of the block device.
// Any thread.
// Owns nothing.
#include "os/direct_io.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/align.h"
#include "os/fd.h"

namespace headrace::os {
namespace {

// struct statx of linux/stat.h, declared here because Debian 12's C library stops short of the direct-I/O fields.
struct StatxTime {
  int64_t seconds;
  uint32_t nanoseconds;
  int32_t reserved;
};
struct KernelStatx {
  uint32_t mask;
  uint32_t block_size;
  uint64_t attributes;
  uint32_t link_count, uid, gid;
  uint16_t mode, spare0;
  uint64_t inode, size, blocks, attributes_mask;
  StatxTime access_time, birth_time, change_time, modification_time;
  uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
  uint64_t mount_id;
  uint32_t direct_memory_align, direct_offset_align;
  uint64_t spare3[12];
};
static_assert(sizeof(KernelStatx) == 256);
constexpr uint32_t kStatxDirectAlign = 0x2000;

uint32_t sector_bytes_from_sysfs(dev_t device) {
  // A partition has no queue folder of its own; its disk does.
  for (const char* pattern :
       {"/sys/dev/block/%u:%u/queue/logical_block_size", "/sys/dev/block/%u:%u/../queue/logical_block_size"}) {
    std::array<char, 96> path = {};
    std::snprintf(path.data(), path.size(), pattern, major(device), minor(device));
    const Fd file(::open(path.data(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open()) continue;
    std::array<char, 32> text = {};
    const ssize_t length = ::read(file.get(), text.data(), text.size());
    uint32_t value = 0;
    if (length > 0 && std::from_chars(text.data(), text.data() + length, value).ec == std::errc{} &&
        base::is_power_of_two(value))
      return value;
  }
  return 0;
}

}  // namespace

uint32_t page_bytes() noexcept {
  static const auto value = static_cast<uint32_t>(::sysconf(_SC_PAGESIZE));
  return value;
}

DirectAlignment query_direct_alignment(int descriptor) noexcept {
  KernelStatx facts = {};
  if (::syscall(SYS_statx, descriptor, "", AT_EMPTY_PATH, kStatxDirectAlign, &facts) == 0 &&
      (facts.mask & kStatxDirectAlign) != 0) {
    if (facts.direct_offset_align == 0) return {.told = true, .refused = true};
    if (base::is_power_of_two(facts.direct_memory_align) && base::is_power_of_two(facts.direct_offset_align)) {
      return {.memory_bytes = facts.direct_memory_align, .offset_bytes = facts.direct_offset_align, .told = true};
    }
  }
  struct stat status = {};
  uint32_t sector = 0;
  if (::fstat(descriptor, &status) == 0) {
    int answer = 0;
    if (S_ISBLK(status.st_mode) && ::ioctl(descriptor, BLKSSZGET, &answer) == 0 && answer > 0) {
      sector = static_cast<uint32_t>(answer);
    } else if (S_ISREG(status.st_mode)) {
      sector = sector_bytes_from_sysfs(status.st_dev);
    }
  }
  if (sector != 0) return {.memory_bytes = sector, .offset_bytes = sector, .told = true};
  return {.memory_bytes = page_bytes(), .offset_bytes = page_bytes()};
}

}  // namespace headrace::os
