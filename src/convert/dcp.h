// SPDX-License-Identifier: Apache-2.0
// Folders of torch's distributed checkpoints, inspected and verified. docs/formats/dcp.md.
// One thread beside the handle's.
// Owns nothing beyond a call.
#pragma once

#include <string>

#include <headrace/inspect.h>
#include <headrace/verify.h>

namespace headrace::convert {

// Is there a file .metadata in this folder?
[[nodiscard]] bool is_dcp_folder(const std::string& path);
[[nodiscard]] Result<Inspection> inspect_dcp(const std::string& path);
// Pieces are archives of torch.save: every record of each is compared with its sum.
[[nodiscard]] Result<Verification> verify_dcp(Handle& handle, const std::string& path, const VerifyOptions& options);

}  // namespace headrace::convert
