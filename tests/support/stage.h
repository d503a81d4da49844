// SPDX-License-Identifier: Apache-2.0
// File systems for tests: the build tree's own, and, for root, ext4 on a loop device with 4096-byte sectors, tmpfs, ramfs,
// overlayfs, and a small ext4. Made when first asked for, gone when the process ends, however it ends.
// One thread makes them.
// The process owns them; a helper process outlives it to clean up.
#pragma once

#include <cstdint>
#include <string>

#include "os/fd.h"

namespace headrace::test {

enum class StageKind : uint8_t { build_tree, ext4_4096, tmpfs, ramfs, overlay, small_ext4 };

[[nodiscard]] const char* stage_name(StageKind kind);

struct Stage {
  std::string folder;  // empty: could not be had
  std::string why_not;
  std::string backing;  // the file below a loop device
  // O_DIRECT is taken and its alignment enforced.
  bool direct = false;
  uint32_t sector_bytes = 0;  // 0: not known
};

[[nodiscard]] const Stage& stage(StageKind kind);

// One more ext4 on a loop device, for a test that breaks it.
[[nodiscard]] Stage extra_ext4(const std::string& name, uint64_t bytes);

// A loop device by itself.
class LoopDevice {
 public:
  LoopDevice(const std::string& name, uint64_t bytes, uint32_t sector_bytes);
  [[nodiscard]] const std::string& name() const noexcept { return name_; }  // empty: could not be had
  [[nodiscard]] const std::string& why_not() const noexcept { return why_not_; }

 private:
  std::string name_;
  std::string why_not_;
  os::Fd device_;
};

}  // namespace headrace::test
