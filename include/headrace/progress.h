// SPDX-License-Identifier: Apache-2.0
// How a long call says what it has done so far, and how it is asked to stop.
// Both functions are called in the calling thread, at most some twenty times a second; they must not throw.
// Owns what its functions capture.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace headrace {

struct ProgressNow {
  std::string_view what;     // the step under way, for people: "reading", "model.safetensors"
  uint64_t done_bytes = 0;   // of the whole call
  uint64_t total_bytes = 0;  // 0: not known
};

struct Progress {
  std::function<void(const ProgressNow&)> show = {};
  // True ends the call with ErrorCode::interrupted; what it made is removed before it returns.
  std::function<bool()> interrupted = {};
};

}  // namespace headrace
