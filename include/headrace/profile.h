// SPDX-License-Identifier: Apache-2.0
// The settings that `headrace tune` found, for a handle. A file is read when it is named, never by itself.
// Any thread.
// Plain values.
#pragma once

#include <cstdint>
#include <string>

#include <headrace/error.h>
#include <headrace/handle.h>

namespace headrace {

enum class ProfileUse : uint8_t {
  read,   // the best for reading
  write,  // the best for writing
  both,   // one handle for both: the greatest sum
};

// From a file that `headrace tune --output` wrote: engine, workers, block_bytes, queue_depth and registered; all else as HandleOptions has
// it. ErrorCode::corrupt where the file is none or says something that is not understood; ErrorCode::unavailable where that
// direction was not tuned, or the run was interrupted.
[[nodiscard]] HEADRACE_EXPORT Result<HandleOptions> read_profile(const std::string& path,
                                                                 ProfileUse use = ProfileUse::both);

}  // namespace headrace
