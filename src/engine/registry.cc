// SPDX-License-Identifier: Apache-2.0
// See registry.h; also the public functions of headrace/engine_info.h.
// Any thread.
// Owns nothing.
#include "engine/registry.h"

#include <errno.h>

#include <array>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "engine/aio_engine.h"
#include "engine/null_engine.h"
#include "engine/posix_engine.h"
#include "engine/probe.h"
#if HEADRACE_HAVE_URING
#include "engine/uring_engine.h"
#endif

namespace headrace::engine {
namespace {

using Made = Result<std::unique_ptr<Engine>>;

constexpr std::array kAutomaticOrder = {EngineKind::uring, EngineKind::aio, EngineKind::posix};
constexpr std::array kKinds = {EngineKind::uring, EngineKind::aio, EngineKind::posix, EngineKind::null};
constexpr std::array kNames = {
    std::pair{EngineKind::automatic, std::string_view("auto")}, std::pair{EngineKind::uring, std::string_view("uring")},
    std::pair{EngineKind::aio, std::string_view("aio")},        std::pair{EngineKind::posix, std::string_view("posix")},
    std::pair{EngineKind::null, std::string_view("null")},
};

Made make(EngineKind kind, const EngineOptions& options);

#if !HEADRACE_HAVE_URING
Made make_uring_engine(const EngineOptions&) {
  return std::unexpected(Error{.code = ErrorCode::unavailable,
                               .operation = "choose engine",
                               .detail = "this build leaves io_uring out (HEADRACE_URING=OFF)"});
}
#endif

Made make_automatic(const EngineOptions& options) {
  std::string reasons;
  for (EngineKind kind : kAutomaticOrder) {
    Made made = make(kind, options);
    if (made) return made;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", engine_name(kind), made.error().message());
  }
  return std::unexpected(
      Error{.code = ErrorCode::unavailable, .operation = "choose engine", .detail = std::move(reasons)});
}

Made make(EngineKind kind, const EngineOptions& options) {
  switch (kind) {
    case EngineKind::automatic: return make_automatic(options);
    case EngineKind::uring: return make_uring_engine(options);
    case EngineKind::aio: return make_aio_engine(options);
    case EngineKind::posix: return make_posix_engine(options);
    case EngineKind::null: return make_null_engine(options);
  }
  return std::unexpected(Error{.code = ErrorCode::invalid_argument,
                               .operation = "choose engine",
                               .detail = "there is no engine of that number"});
}

}  // namespace

EngineFactory factory_for(EngineKind kind) {
  return [kind](const EngineOptions& options) -> Made {
    try {
      return make(kind, options);
    } catch (const std::bad_alloc&) {
      return std::unexpected(Error{.errno_value = ENOMEM, .operation = "make engine"});
    }
  };
}

std::span<const EngineKind> automatic_order() noexcept { return kAutomaticOrder; }

}  // namespace headrace::engine

namespace headrace {

std::string_view engine_name(EngineKind kind) noexcept {
  for (const auto& [known, name] : engine::kNames) {
    if (known == kind) return name;
  }
  return "unknown";
}

std::optional<EngineKind> engine_from_name(std::string_view name) noexcept {
  for (const auto& [kind, known] : engine::kNames) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

std::vector<EngineInfo> probe_engines() {
  std::vector<EngineInfo> infos;
  infos.reserve(engine::kKinds.size());
  for (EngineKind kind : engine::kKinds)
    infos.push_back(engine::probe(kind));
  return infos;
}

}  // namespace headrace
