// SPDX-License-Identifier: Apache-2.0
// Tries one engine for real: builds it on a thread of its own, moves a few bytes, drops it.
// Any thread; blocks until the verdict.
// Owns nothing.
#pragma once

#include <headrace/engine_info.h>

namespace headrace::engine {

[[nodiscard]] EngineInfo probe(EngineKind kind);

}  // namespace headrace::engine
