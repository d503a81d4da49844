// SPDX-License-Identifier: Apache-2.0
// What a folder lies on: file system, mount, space, device.
// Any thread.
// Owns nothing.
#pragma once

#include <sys/types.h>

#include <string>

#include <headrace/report.h>

#include "diagnose/report_devices.h"

namespace headrace::diagnose {

// Fills in path, real path, file system and devices. An error when this is no folder that can be looked at.
[[nodiscard]] Status describe_folder(const KernelFolders& kernel, FolderReport& report);

// The line of /proc/self/mountinfo with this mount number, and a folder below which a stacked file system (overlayfs) writes.
struct Mount {
  FileSystemFacts facts;
  std::string upper_folder;  // empty when nothing is stacked, or its place is not told
};
[[nodiscard]] std::optional<Mount> find_mount(std::string_view mountinfo, uint64_t mount_id);

}  // namespace headrace::diagnose
