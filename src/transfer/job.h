// SPDX-License-Identifier: Apache-2.0
// The unit of work in the queue: one contiguous range of one file, in parts that belong to one or several transfers.
// The queue's lock guards `position`, `part` and each part's `dropped`; the rest is fixed once queued.
// Owned by the queue while it has blocks to hand out, and by each block in flight. `file` lives as long as any owner
// of a part is unfinished, which each block in flight ensures.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory/buffer_storage.h"
#include "plan/block_plan.h"

namespace headrace::transfer {

class OpenFile;
class TransferState;
struct SyncGroup;

// A piece of memory and the file range that belongs to it.
struct Part {
  std::shared_ptr<TransferState> owner;
  uint64_t begin = 0, end = 0;  // file offsets; the job's parts follow each other without a gap
  std::byte* data = nullptr;    // of `begin`; not written through when the job is a write
  plan::Straight straight = plan::Straight::if_buffered;
  uint64_t buffer_id = 0;  // of the headrace::Buffer that holds it, or 0
  std::byte* buffer_data = nullptr;
  uint64_t buffer_bytes = 0;
  bool dropped = false;  // cancelled, aborted or failed: nothing more of it is sent
};

struct Job {
  plan::Direction direction = plan::Direction::read;
  bool datasync = false;     // no parts: one datasync of `file` for `sync`
  bool single = false;       // cut out of a block that failed: not to be cut out again
  bool past_caches = false;  // much is moved: staged copies would only push other things out of the caches
  bool summed = false;       // its bytes are in their owners' checksums already
  int priority = 0;
  OpenFile* file = nullptr;
  bool direct_wanted = true;  // false: from or through the page cache
  uint64_t grow_to = 0;       // the length that a file created for these writes will have; 0: not to be grown ahead
  std::vector<Part> parts;
  std::shared_ptr<SyncGroup> sync;  // of a datasync

  uint64_t position = 0;  // file offset of the next byte to hand out
  uint32_t part = 0;      // index of the part that holds `position`
  uint64_t run_end = 0;   // end of the parts from `part` on that are not dropped; 0: to be found again
  bool queued = false;
  Job* next = nullptr;  // in its priority's list
  Job* previous = nullptr;
  std::shared_ptr<Job> self;  // holds the job while it is queued

  [[nodiscard]] uint64_t end() const noexcept { return parts.empty() ? 0 : parts.back().end; }
};

}  // namespace headrace::transfer
