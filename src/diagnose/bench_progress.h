// SPDX-License-Identifier: Apache-2.0
// How benchmarks tell their progress, and the error of one that was stopped.
// One thread.
// Owns nothing.
#pragma once

#include <headrace/error.h>

#include "base/progress_meter.h"

namespace headrace::diagnose {

using base::ProgressMeter;

inline Error interrupted() {
  return {.code = ErrorCode::interrupted, .operation = "benchmark", .detail = "the benchmark was interrupted"};
}

}  // namespace headrace::diagnose
