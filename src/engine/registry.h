// SPDX-License-Identifier: Apache-2.0
// Engines by kind: factories for the threads that will own them, and the order in which `automatic` tries.
// Any thread; a factory is called on the owner thread of the engine that it makes.
// Owns nothing.
#pragma once

#include <span>

#include <headrace/engine_info.h>

#include "engine/engine.h"

namespace headrace::engine {

// Never empty. The factory of `automatic` takes the first engine of automatic_order() that works; that of an engine
// which this build leaves out answers `unavailable`. Factories let no exception out.
[[nodiscard]] EngineFactory factory_for(EngineKind kind);

// Best first. The null engine is never taken by itself.
[[nodiscard]] std::span<const EngineKind> automatic_order() noexcept;

}  // namespace headrace::engine
