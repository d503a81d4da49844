// SPDX-License-Identifier: Apache-2.0
// pread, pwrite and fdatasync on helper threads: works wherever files do.
// One owner thread, as engine.h says.
// Owns its threads; they are started as blocks need them.
#pragma once

#include "engine/engine.h"

namespace headrace::engine {

[[nodiscard]] Result<std::unique_ptr<Engine>> make_posix_engine(const EngineOptions& options);

}  // namespace headrace::engine
