// SPDX-License-Identifier: Apache-2.0
// What stands beside every result: the machine, the place on it, and what this process has used so far.
// Any thread.
// Owns nothing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include <headrace/benchmark.h>

#include "diagnose/bench_progress.h"

namespace headrace::diagnose {

[[nodiscard]] BenchmarkMachine describe_machine();

// `path` is what people call it, `descriptor` an open file there, or the block device itself.
[[nodiscard]] BenchmarkPlace describe_place(const std::string& path, int descriptor);

// User and system time of all threads of this process.
[[nodiscard]] double cpu_seconds() noexcept;

// Of memory that can be had without swapping; none where /proc/meminfo does not tell.
[[nodiscard]] std::optional<uint64_t> available_memory_bytes();

// What the block layer was asked to move for this process so far.
struct DeviceBytes {
  uint64_t read = 0;
  uint64_t written = 0;
};
[[nodiscard]] std::optional<DeviceBytes> device_bytes();

// Memory of a virtual machine may have gone back to its host, and whoever touches it first pays. So that the page cache does not
// pay in the middle of a measurement, this touches and frees four times `bytes`, half of what is available at most.
enum class Primed : uint8_t { done, stopped };
[[nodiscard]] Primed prime_memory(uint64_t bytes, ProgressMeter& meter);

}  // namespace headrace::diagnose
