// SPDX-License-Identifier: Apache-2.0
// A file made of stretches of memory, written in rounds into a temporary file and then put in place. Bytes of devices come to
// the host through a ring of staging memory.
// One thread at a time; finish() and commit() block.
// Borrows the handle and the memory; owns the temporary file until commit().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <headrace/checkpoint.h>

namespace headrace::checkpoint {

// A range of the file and the memory it is gathered from.
struct Stretch {
  uint64_t offset_bytes = 0;
  std::vector<ConstRegion> sources;
  Checksum checksum = Checksum::none;
};

class AtomicWrite {
 public:
  [[nodiscard]] static Result<AtomicWrite> create(Handle& handle, const std::string& path, uint64_t file_bytes,
                                                  const SaveOptions& options);

  // Ranges that begin and end at multiples of this go past the page cache, all of them.
  [[nodiscard]] uint64_t granule_bytes() const noexcept { return granule_bytes_; }
  // Sends them; their memory on the host is in use until finish(). A stretch with a source on a device is copied whole into the
  // staging memory, part by part, and this waits for room there. A stretch that ends where the file does is written with zeros
  // behind it up to a whole granule; the commit cuts them off. On an error nothing is under way any more.
  [[nodiscard]] Status start(std::span<const Stretch> stretches);
  // Blocks until all that were sent are written. The sums asked for since the last call, in the order of the stretches that asked.
  [[nodiscard]] Result<std::vector<uint32_t>> finish();
  // Bytes of a device, on the host. Between finish() and the next start().
  [[nodiscard]] Result<std::vector<std::byte>> fetch(const ConstRegion& source);
  [[nodiscard]] Status commit();

 private:
  struct Batch;
  // Of a transfer, for the sum of a stretch: one of those that asked since the last finish().
  struct Sum {
    size_t transfer = 0;
    uint64_t bytes_behind = 0;  // in the stretch
    size_t asked = 0;
  };
  // One part of the staging memory, and the transfers that use it: indices into under_way_.
  struct Slot {
    size_t users_begin = 0, users_end = 0;
  };
  static constexpr size_t kSlots = 4;

  AtomicWrite(Handle& handle, std::string path, AtomicFile file, uint64_t file_bytes, const SaveOptions& options);
  [[nodiscard]] Error told(Error error) const;
  [[nodiscard]] Status send(Batch& batch);
  [[nodiscard]] Status stage(const Stretch& stretch, Batch& batch);
  [[nodiscard]] Status next_slot(Batch& batch);
  [[nodiscard]] Status check_staging() const;
  [[nodiscard]] Status failed(Error error);

  Handle* handle_;
  std::string path_;
  AtomicFile file_;
  uint64_t file_bytes_;
  uint64_t granule_bytes_;
  uint64_t padding_bytes_;  // from the end of the file to that of its last granule
  std::function<bool()> interrupted_;
  DeviceCopy device_copy_;
  uint64_t slot_bytes_;
  std::vector<Transfer> under_way_;
  std::vector<Sum> sums_;
  size_t asked_ = 0;
  std::array<Slot, kSlots> slots_;
  size_t slot_ = 0;  // the one that is being filled
  uint64_t slot_filled_bytes_ = 0;
};

}  // namespace headrace::checkpoint
