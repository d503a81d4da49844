// SPDX-License-Identifier: Apache-2.0
// Linux native AIO for direct blocks; buffered blocks and datasyncs, on which it would block, go to helper threads.
// One owner thread, as engine.h says.
// Owns the kernel's context and its threads, which are started as blocks need them.
#pragma once

#include "engine/engine.h"

namespace headrace::engine {

// A depth for which fs.aio-max-nr leaves no room is halved, down to 8; caps().depth tells.
[[nodiscard]] Result<std::unique_ptr<Engine>> make_aio_engine(const EngineOptions& options);

}  // namespace headrace::engine
