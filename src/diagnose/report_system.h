// SPDX-License-Identifier: Apache-2.0
// What a report says about the machine itself, and what could be better there.
// Any thread.
// Owns nothing.
#pragma once

#include <vector>

#include <headrace/report.h>

#include "diagnose/report_devices.h"

namespace headrace::diagnose {

// Everything but the folders. Engines are tried once, with a few bytes in memory.
[[nodiscard]] MachineReport describe_machine(const KernelFolders& kernel);

[[nodiscard]] std::vector<Advice> advise(const MachineReport& report);

// Looks for the libraries of NVIDIA by either of their names. None is opened: code of a driver that is half installed
// must not run inside a report about it.
[[nodiscard]] GpuFacts find_gpu_libraries(const KernelFolders& kernel, const std::string& machine);

// "8 MiB"; "no limit" for none.
[[nodiscard]] std::string limit_text(std::optional<uint64_t> bytes);

}  // namespace headrace::diagnose
