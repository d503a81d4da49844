// SPDX-License-Identifier: Apache-2.0
// Which engines exist and whether each works here, found by trying, never by reading versions.
// Any thread.
// Plain values that own their text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/export.h>

namespace headrace {

enum class EngineKind : uint8_t {
  automatic,  // uring, else aio, else posix: the first that works
  uring,      // io_uring
  aio,        // Linux native AIO by its system calls; buffered parts by helper threads
  posix,      // pread and pwrite on a pool of threads
  null,       // completes everything at once and moves nothing: measures this library's own cost
};

// "auto", "uring", "aio", "posix", "null".
HEADRACE_EXPORT std::string_view engine_name(EngineKind kind) noexcept;
HEADRACE_EXPORT std::optional<EngineKind> engine_from_name(std::string_view name) noexcept;

struct EngineInfo {
  EngineKind kind = EngineKind::automatic;
  bool available = false;
  std::string reason;  // why not, or which flags worked
};

// Builds and drops each engine once and reports what happened.
HEADRACE_EXPORT std::vector<EngineInfo> probe_engines();

}  // namespace headrace
