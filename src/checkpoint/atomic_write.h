// SPDX-License-Identifier: Apache-2.0
// A file made of stretches of memory, written in rounds into a temporary file and then put in place.
// One thread at a time; finish() and commit() block.
// Borrows the handle and the memory; owns the temporary file until commit().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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
  // Sends them; their memory is in use until finish(). A stretch that ends where the file does is written with zeros behind it up to
  // a whole granule; the commit cuts them off. On an error nothing is under way any more.
  [[nodiscard]] Status start(std::span<const Stretch> stretches);
  // Blocks until all that were sent are written. The sums asked for since the last call, in the order of the stretches that asked.
  [[nodiscard]] Result<std::vector<uint32_t>> finish();
  [[nodiscard]] Status commit();

 private:
  AtomicWrite(Handle& handle, std::string path, AtomicFile file, uint64_t file_bytes, const SaveOptions& options);
  [[nodiscard]] Error told(Error error) const;

  Handle* handle_;
  std::string path_;
  AtomicFile file_;
  uint64_t file_bytes_;
  uint64_t granule_bytes_;
  std::function<bool()> interrupted_;
  std::vector<Transfer> under_way_;
  std::vector<size_t> summed_;  // those of them whose sums are asked for
};

}  // namespace headrace::checkpoint
