// SPDX-License-Identifier: Apache-2.0
// Folders of torch's distributed checkpoints, inspected and verified. docs/formats/dcp.md.
// One thread beside the handle's.
// Owns nothing beyond a call.
#pragma once

#include <string>

#include <headrace/inspect.h>
#include <headrace/verify.h>

namespace headrace::convert {

// A folder with .metadata, or with the metadata of ranks alone and no other checkpoint; and a file of such a folder, which the
// two below answer by naming the folder.
[[nodiscard]] bool is_dcp(const std::string& path);
[[nodiscard]] Result<Inspection> inspect_dcp(Handle& handle, const std::string& path, const InspectOptions& options);
// Pieces are archives of torch.save: every record of each is compared with its sum, and what its pickle says of the tensor with
// the metadata. Safetensors files and legacy archives hold no sums, and are compared otherwise.
[[nodiscard]] Result<Verification> verify_dcp(Handle& handle, const std::string& path, const VerifyOptions& options);

}  // namespace headrace::convert
