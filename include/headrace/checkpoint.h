// SPDX-License-Identifier: Apache-2.0
// Checkpoint files: torch's two containers and safetensors, written whole or not at all, read at the speed of the device.
// Any thread; calls block until done. Memory named by a Region must stay as it is until the call returns.
// Nothing here keeps a reference to the handle or to the caller's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <headrace/atomic_file.h>
#include <headrace/error.h>
#include <headrace/handle.h>
#include <headrace/region.h>
#include <headrace/tensor.h>

namespace headrace {

// One pickle and the storages it names, as torch.save writes them.
struct TorchArchive {
  std::string_view pickle;                // protocol 2; storage i has the persistent id key "i"
  std::span<const ConstRegion> storages;  // raw bytes, each written once
};

struct SaveOptions {
  Durability durability = Durability::data;  // `none`: a power cut may leave an empty or torn file under the final name
  uint32_t alignment_bytes = 4096;           // of the records of a torch zip archive: a power of two, 64..32768
  // Asked ten times a second while a call waits; true ends it with ErrorCode::interrupted. The old file stays. Called in the
  // calling thread; it must not throw.
  std::function<bool()> interrupted = {};
};

// Each returns the length of the file in bytes. The file appears under `path` whole and, with Durability::data, safe from
// a power cut, or not at all: see AtomicFile for links and permissions. Temporary files that killed processes left in the folder
// are removed. An error names the operation, the path, the offset and the errno; ENOSPC also the space that is free.

// The zip container of torch.save, with the CRC-32 of every record: docs/formats/torch-zip.md.
[[nodiscard]] HEADRACE_EXPORT Result<uint64_t> save_torch_zip(Handle& handle, const std::string& path,
                                                              const TorchArchive& archive,
                                                              const SaveOptions& options = {});

}  // namespace headrace
