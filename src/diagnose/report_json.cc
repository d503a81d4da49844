// SPDX-License-Identifier: Apache-2.0
// The report as JSON, version 1: docs/schema/report.json is its contract. What is not known is null, what is empty is "".
// Any thread: pure.
// Owns nothing.
#include <nlohmann/json.hpp>

#include <headrace/report.h>
#include <headrace/version.h>

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json error_json(const Error& error) {
  return {{"code", error_code_name(error.code)},
          {"operation", error.operation},
          {"path", error.path},
          {"errno", error.errno_value != 0 ? Json(errno_name(error.errno_value)) : Json(nullptr)},
          {"remedy", error.detail},
          {"message", error.message()}};
}

Json or_null(const std::optional<Error>& error) { return error ? error_json(*error) : Json(nullptr); }

Json advice_json(const std::vector<Advice>& advice) {
  Json all = Json::array();
  for (const Advice& entry : advice)
    all.push_back({{"about", entry.about}, {"what", entry.what}, {"remedy", entry.remedy}});
  return all;
}

Json library_json(const LibraryFacts& library) {
  return {
      {"name", library.name}, {"found", !library.path.empty()}, {"path", text_or_null(library.path)}, {"tried", false}};
}

Json machine_json(const MachineReport& report) {
  Json pools = Json::array();
  for (const HugePagePool& pool : report.huge_pages.reserved)
    pools.push_back(
        {{"page_bytes", pool.page_bytes}, {"total_pages", pool.total_pages}, {"free_pages", pool.free_pages}});
  Json engines = Json::array();
  for (const EngineInfo& engine : report.engines)
    engines.push_back(
        {{"engine", engine_name(engine.kind)}, {"available", engine.available}, {"detail", engine.reason}});
  const ProcessorFacts& processors = report.processors;
  return {
      {"kernel",
       {{"name", report.kernel.name}, {"release", report.kernel.release}, {"machine", report.kernel.machine}}},
      {"processors",
       {{"model", text_or_null(processors.model)},
        {"online", processors.online},
        {"allowed", processors.allowed},
        {"numa_nodes", processors.numa_nodes != 0 ? Json(processors.numa_nodes) : Json(nullptr)}}},
      {"memory",
       {{"total_bytes", report.memory.total_bytes},
        {"available_bytes", report.memory.available_bytes},
        {"page_bytes", report.memory.page_bytes}}},
      {"huge_pages", {{"transparent", text_or_null(report.huge_pages.transparent)}, {"reserved", std::move(pools)}}},
      {"locked_memory",
       {{"limit_bytes", or_null(report.locked_memory.limit_bytes)},
        {"limit_max_bytes", or_null(report.locked_memory.limit_max_bytes)},
        {"exempt", report.locked_memory.exempt}}},
      {"io_uring", {{"disabled", or_null(report.uring_disabled)}}},
      {"aio", {{"places_max", or_null(report.aio.places_max)}, {"places_used", or_null(report.aio.places_used)}}},
      {"gpu",
       {{"cuda_driver", library_json(report.gpu.cuda_driver)},
        {"cufile", library_json(report.gpu.cufile)},
        {"driver_version", text_or_null(report.gpu.driver_version)},
        {"nvidia_fs_version", text_or_null(report.gpu.nvidia_fs_version)},
        {"note", "not tried: GPU support is not there yet"}}},
      {"engines", std::move(engines)},
      {"advice", advice_json(report.advice)},
  };
}

Json device_json(const BlockDeviceFacts& device) {
  return {{"name", device.name},
          {"partition", text_or_null(device.partition)},
          {"member_of", text_or_null(device.member_of)},
          {"kind", device.kind},
          {"model", text_or_null(device.model)},
          {"backing_file", text_or_null(device.backing_file)},
          {"size_bytes", or_null(device.size_bytes)},
          {"logical_sector_bytes", or_null(device.logical_sector_bytes)},
          {"physical_sector_bytes", or_null(device.physical_sector_bytes)},
          {"scheduler", text_or_null(device.scheduler)},
          {"queue_depth", or_null(device.queue_depth)},
          {"hardware_queues", or_null(device.hardware_queues)},
          {"request_bytes_max", or_null(device.request_bytes_max)},
          {"request_segments_max", or_null(device.request_segments_max)},
          {"write_cache", text_or_null(device.write_cache)},
          {"rotational", or_null(device.rotational)},
          {"virtual_disk", or_null(device.virtual_disk)},
          {"numa_node", or_null(device.numa_node)}};
}

Json route_json(const Route& route) {
  return {{"direct_bytes", route.direct_bytes},   {"buffered_bytes", route.buffered_bytes},
          {"staged_bytes", route.staged_bytes},   {"registered_bytes", route.registered_bytes},
          {"pages", page_kind_name(route.pages)}, {"why", route.why}};
}

Json round_trip_json(const RoundTrip& trip) {
  Json all = {{"shape", trip.shape},
              {"offset_bytes", trip.offset_bytes},
              {"length_bytes", trip.length_bytes},
              {"bytes_right", trip.bytes_right}};
  all["read_from"] = trip.bytes_right ? Json(read_from_name(trip.read_from)) : Json(nullptr);
  all["write"] = trip.bytes_right ? route_json(trip.write) : Json(nullptr);
  all["read"] = trip.bytes_right ? route_json(trip.read) : Json(nullptr);
  all["error"] = or_null(trip.error);
  return all;
}

Json engine_json(const EngineReport& engine) {
  Json trips = Json::array();
  for (const RoundTrip& trip : engine.round_trips)
    trips.push_back(round_trip_json(trip));
  return {{"engine", engine_name(engine.engine)},
          {"verdict", verdict_name(engine.verdict)},
          {"detail", engine.detail},
          {"why", engine.why},
          {"remedy", engine.remedy},
          {"round_trips", std::move(trips)}};
}

Json folder_json(const FolderReport& folder) {
  const FileSystemFacts& system = folder.file_system;
  Json devices = Json::array();
  for (const BlockDeviceFacts& device : folder.devices)
    devices.push_back(device_json(device));
  Json engines = Json::array();
  for (const EngineReport& engine : folder.engines)
    engines.push_back(engine_json(engine));
  const bool known = folder.direct.accepted;
  return {{"path", folder.path},
          {"real_path", text_or_null(folder.real_path)},
          {"usable", folder.usable()},
          {"error", or_null(folder.error)},
          {"file_system",
           {{"type", text_or_null(system.type)},
            {"source", text_or_null(system.source)},
            {"mounted_at", text_or_null(system.mounted_at)},
            {"mount_options", text_or_null(system.mount_options)},
            {"options", text_or_null(system.options)},
            {"size_bytes", or_null(system.size_bytes)},
            {"free_bytes", or_null(system.free_bytes)},
            {"in_memory", system.in_memory}}},
          {"direct_io",
           {{"accepted", folder.engines.empty() ? Json(nullptr) : Json(known)},
            {"alignment_told", folder.direct.told},
            {"memory_alignment_bytes", known ? Json(folder.direct.memory_alignment_bytes) : Json(nullptr)},
            {"offset_alignment_bytes", known ? Json(folder.direct.offset_alignment_bytes) : Json(nullptr)}}},
          {"devices", std::move(devices)},
          {"engines", std::move(engines)},
          {"advice", advice_json(folder.advice)}};
}

}  // namespace

std::string to_json(const MachineReport& report) {
  Json folders = Json::array();
  for (const FolderReport& folder : report.folders)
    folders.push_back(folder_json(folder));
  const Json all = {{"schema", "headrace.report"},
                    {"version", 1},
                    {"headrace", HEADRACE_VERSION},
                    {"machine", machine_json(report)},
                    {"folders", std::move(folders)}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace headrace
