// SPDX-License-Identifier: Apache-2.0
// What inspect tells, as JSON: docs/schema/inspect.json.
// Any thread: pure functions.
// Owns nothing.
#include <headrace/inspect.h>

#include "convert/json.h"

namespace headrace {
namespace {

using convert::Json;

Json file_json(const InspectedFile& file) {
  Json metadata = Json::object();
  // Each key is there once; looking for it among those before would take a million of them a million times as long.
  for (const auto& [key, value] : file.metadata)
    metadata.get_ref<Json::object_t&>().emplace_back(key, value);
  return {{"path", file.path},
          {"format", file.format},
          {"bytes", file.bytes},
          {"storages", file.storages},
          {"storage_bytes", file.storage_bytes},
          {"storages_with_crc32", file.storages_with_crc32},
          {"unknown_globals", file.unknown_globals},
          {"metadata", std::move(metadata)}};
}

Json tensor_json(const InspectedTensor& tensor) {
  return {{"name", tensor.name},
          {"dtype", dtype_facts(tensor.dtype).name},
          {"shape", tensor.shape},
          {"strides", tensor.strides},
          {"elements", element_count(tensor.shape)},
          {"bytes", tensor.bytes},
          {"file", tensor.file},
          {"offset_bytes", tensor.offset_bytes},
          {"alignment_bytes", tensor.alignment_bytes},
          {"contiguous", tensor.contiguous},
          {"pieces", tensor.pieces},
          {"shares_with", convert::text_or_null(tensor.shares_with)}};
}

}  // namespace

std::string to_json(const Inspection& inspection) {
  Json json = convert::head("headrace.inspect");
  json["path"] = inspection.path;
  json["index"] = inspection.index ? Json(*inspection.index) : Json();
  Json files = Json::array();
  for (const InspectedFile& file : inspection.files)
    files.push_back(file_json(file));
  json["files"] = std::move(files);
  uint64_t bytes = 0, elements = 0;
  Json tensors = Json::array();
  for (const InspectedTensor& tensor : inspection.tensors) {
    bytes += tensor.bytes;
    elements += element_count(tensor.shape);
    tensors.push_back(tensor_json(tensor));
  }
  json["totals"] = {{"tensors", inspection.tensors.size()}, {"elements", elements}, {"bytes", bytes}};
  json["tensors"] = std::move(tensors);
  Json others = Json::array();
  for (const StoredValue& value : inspection.others)
    others.push_back({{"name", value.name}, {"text", value.text}});
  json["others"] = std::move(others);
  json["problems"] = convert::problems(inspection.problems);
  return convert::text(json);
}

}  // namespace headrace
