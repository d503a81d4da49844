// SPDX-License-Identifier: Apache-2.0
// io_uring through liburing: one ring per engine, registered memory where the kernel has it.
// One owner thread, as engine.h says: the kernel enforces it.
// Owns the ring.
#pragma once

#include "engine/engine.h"

namespace headrace::engine {

// The error says in plain words why io_uring cannot be had here and what can be done. Found out by use, not by version.
[[nodiscard]] Result<std::unique_ptr<Engine>> make_uring_engine(const EngineOptions& options);

}  // namespace headrace::engine
