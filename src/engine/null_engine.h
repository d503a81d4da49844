// SPDX-License-Identifier: Apache-2.0
// Completes every block at once with its full length and moves nothing: what remains is this library's own cost.
// One owner thread, as engine.h says.
// Owns its queue; never touches the memory of a block.
#pragma once

#include "engine/engine.h"

namespace headrace::engine {

[[nodiscard]] Result<std::unique_ptr<Engine>> make_null_engine(const EngineOptions& options);

}  // namespace headrace::engine
