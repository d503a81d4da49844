// SPDX-License-Identifier: Apache-2.0
// See route.h.
// Needs the GIL; it is released while engines are tried.
// Values only.
#include "route.h"

#include <string>

#include <nanobind/stl/string.h>

#include "errors.h"
#include "interpreter.h"

namespace headrace::python {

namespace {

nb::str name_of(EngineKind kind) {
  const std::string_view name = engine_name(kind);
  return nb::str(name.data(), name.size());
}

nb::dict direction_dict(const DirectionStats& stats) {
  nb::dict routes;
  routes["direct"] = stats.direct_bytes;
  routes["buffered"] = stats.buffered_bytes;
  routes["staged"] = stats.staged_bytes;
  routes["registered"] = stats.registered_bytes;
  nb::dict latency;
  constexpr const char* kNames[] = {"p50", "p90", "p99", "p99.9", "max"};
  for (size_t i = 0; i < stats.latency_ns.size(); ++i)
    latency[kNames[i]] = stats.latency_ns[i];
  nb::dict all;
  all["requests"] = stats.requests;
  all["failed"] = stats.failed;
  all["bytes"] = stats.bytes;
  all["blocks"] = stats.blocks;
  all["bytes_by_route"] = routes;
  all["latency_ns"] = latency;
  return all;
}

std::string describe_route(const RouteObject& self) {
  const Route& route = self.value;
  std::string text = "<headrace.Route engine=" + std::string(engine_name(route.engine)) +
                     " direct_bytes=" + std::to_string(route.direct_bytes) +
                     " buffered_bytes=" + std::to_string(route.buffered_bytes) +
                     " staged_bytes=" + std::to_string(route.staged_bytes) +
                     " registered_bytes=" + std::to_string(route.registered_bytes) +
                     " pages=" + page_kind_name(route.pages);
  return text + (route.why.empty() ? ">" : " why='" + route.why + "'>");
}

std::string describe_engine(const EngineInfo& self) {
  return "<headrace.EngineInfo " + std::string(engine_name(self.kind)) +
         (self.available ? " available: " : " not available: ") + self.reason + ">";
}

nb::list probe() {
  const auto found = without_gil([] { return probe_engines(); });
  nb::list engines;
  for (const EngineInfo& info : found)
    engines.append(nb::cast(info));
  return engines;
}

constexpr const char* kRouteDoc = R"(Which way the bytes of a finished transfer went. All counts are of payload bytes.

``direct_bytes`` + ``buffered_bytes`` is what was moved: past the page cache, or through it. Of
these, ``staged_bytes`` were copied through the library's own buffers and ``registered_bytes`` used
memory registered with the ring.)";

}  // namespace

nb::dict stats_dict(const HandleStats& stats) {
  nb::dict errors;
  for (const auto& [number, count] : stats.errors_by_errno)
    errors[nb::int_(number)] = count;
  nb::dict all;
  all["requests"] = stats.reads.requests + stats.writes.requests;
  all["failed"] = stats.reads.failed + stats.writes.failed;
  all["bytes"] = stats.reads.bytes + stats.writes.bytes;
  all["unfinished_requests"] = stats.unfinished_requests;
  all["errors_by_errno"] = errors;
  all["reads"] = direction_dict(stats.reads);
  all["writes"] = direction_dict(stats.writes);
  all["staging_bytes_in_use"] = stats.staging_bytes_in_use;
  all["memory_registered_bytes"] = stats.memory_registered_bytes;
  return all;
}

nb::dict facts_dict(const HandleFacts& facts) {
  nb::dict all;
  all["engine"] = name_of(facts.engine);
  all["engine_detail"] = facts.engine_detail.c_str();
  all["workers"] = facts.workers;
  all["block_bytes"] = facts.block_bytes;
  all["staged_block_bytes"] = facts.staged_block_bytes;
  all["queue_depth"] = facts.queue_depth;
  all["staging_bytes"] = facts.staging_bytes;
  all["requests_max"] = facts.requests_max;
  return all;
}

void bind_route(nb::module_& module) {
  nb::class_<RouteObject>(module, "Route", kRouteDoc)
      .def_prop_ro(
          "engine", [](const RouteObject& self) { return name_of(self.value.engine); },
          nb::sig("def engine(self) -> str"), "\"uring\", \"aio\", \"posix\" or \"null\".")
      .def_prop_ro(
          "direct", [](const RouteObject& self) { return self.value.direct_bytes > 0; },
          "True when bytes went past the page cache.")
      .def_prop_ro(
          "registered", [](const RouteObject& self) { return self.value.registered_bytes > 0; },
          "True when memory registered with the ring was used.")
      .def_prop_ro("direct_bytes", [](const RouteObject& self) { return self.value.direct_bytes; })
      .def_prop_ro("buffered_bytes", [](const RouteObject& self) { return self.value.buffered_bytes; })
      .def_prop_ro("staged_bytes", [](const RouteObject& self) { return self.value.staged_bytes; })
      .def_prop_ro("registered_bytes", [](const RouteObject& self) { return self.value.registered_bytes; })
      .def_prop_ro(
          "pages", [](const RouteObject& self) { return page_kind_name(self.value.pages); },
          "Of the caller's memory: \"unknown\", \"small\", \"transparent\" or \"reserved\".")
      .def_prop_ro(
          "why", [](const RouteObject& self) { return decode_path(self.value.why); }, nb::sig("def why(self) -> str"),
          "Why not a faster route; empty when there was none.")
      .def("__repr__", &describe_route);

  nb::class_<EngineInfo>(module, "EngineInfo", "Whether an engine works here, found by trying.")
      .def_prop_ro(
          "name", [](const EngineInfo& self) { return name_of(self.kind); }, nb::sig("def name(self) -> str"))
      .def_prop_ro("available", [](const EngineInfo& self) { return self.available; })
      .def_prop_ro(
          "reason", [](const EngineInfo& self) { return self.reason; },
          "Why it does not work, or which of its features do.")
      .def("__repr__", &describe_engine);

  module.def("probe_engines", &probe, nb::sig("def probe_engines() -> list[EngineInfo]"),
             "Builds and drops each engine once and says what happened.");
}

}  // namespace headrace::python
