// SPDX-License-Identifier: Apache-2.0
// The block device below a file system, and what it is made of: partitions, RAID and device-mapper members, by /sys.
// Any thread.
// Owns nothing.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include <headrace/report.h>

namespace headrace::diagnose {

// Where the kernel shows what it knows; tests put folders of their own there.
struct KernelFolders {
  std::string proc = "/proc";
  std::string sys = "/sys";
};

// The device itself first, then the devices that it is made of, each once. Empty when /sys is hidden or the number is not that
// of a block device (tmpfs, overlayfs, NFS).
[[nodiscard]] std::vector<BlockDeviceFacts> block_devices(const KernelFolders& kernel, dev_t device);

}  // namespace headrace::diagnose
