// SPDX-License-Identifier: Apache-2.0
// Things that are read from elsewhere while they are saved: as memory that only a copy can reach (DeviceKind::other), so that
// every writer of files can write them. Writers ask nearly in the order of the file, and a stream runs ahead of them.
// One thread.
// Owns the stream and a bounded store of what was passed over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include <headrace/checkpoint.h>
#include <headrace/region.h>

#include "convert/range_stream.h"

namespace headrace::convert {

class StreamedSource {
 public:
  using Next = std::function<Result<std::optional<Piece>>()>;
  // A stream of the items from `first` on; its pieces count items from there.
  using Open = std::function<Result<Next>(size_t first)>;

  // `sizes` are those of the items, in the order in which a writer wants them.
  StreamedSource(const std::vector<uint64_t>& sizes, Open open);

  // What stands for item `i`, for a writer that has copier() as its SaveOptions::device_copy. Must not outlive this object.
  [[nodiscard]] ConstRegion region(size_t i) const;
  [[nodiscard]] std::function<Status(const ConstRegion&, std::span<std::byte>)> copier();

 private:
  struct Stream {
    Next next;
    size_t first_item = 0;
    uint64_t position = 0;            // of the first byte of `rest`, among all items one behind the other
    std::span<const std::byte> rest;  // of the piece
  };

  [[nodiscard]] Status copy(uint64_t position, std::span<std::byte> target);
  [[nodiscard]] Status copy_passed(uint64_t position, std::span<std::byte> target);
  // Brings the stream to `position`, keeping what it passes over if `keep` allows.
  enum class Keep : uint8_t { what_fits, nothing };
  [[nodiscard]] Status advance(Stream& stream, uint64_t position, Keep keep);
  [[nodiscard]] Status need(Stream& stream);
  [[nodiscard]] Status take(Stream& stream, std::span<std::byte> target);
  [[nodiscard]] Result<Stream> open_at(size_t item);
  [[nodiscard]] size_t item_at(uint64_t position) const;

  std::vector<uint64_t> begins_;  // of the items, one behind the other, and the end of the last
  Open open_;
  std::optional<Stream> stream_;
  std::optional<Stream> again_;                      // behind it, for what was not kept
  std::map<uint64_t, std::vector<std::byte>> kept_;  // by position
  uint64_t kept_bytes_ = 0;
};

}  // namespace headrace::convert
