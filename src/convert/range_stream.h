// SPDX-License-Identifier: Apache-2.0
// Ranges of files, read one behind the other at the speed of the device: a ring of slots is kept full of reads.
// One thread beside the handle's.
// Borrows the handle; owns the slots, whose memory the library keeps until the last read into it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <headrace/buffer.h>
#include <headrace/file.h>
#include <headrace/handle.h>
#include <headrace/transfer.h>

namespace headrace::convert {

struct FileRange {
  uint32_t file = 0;  // index into the files
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

// Some bytes of one of the things that a stream was asked for. They stay until the stream's next call.
struct Piece {
  size_t item = 0;            // its index in the order asked for
  uint64_t offset_bytes = 0;  // in it
  std::span<const std::byte> bytes;
};
using RangePiece = Piece;

class RangeStream {
 public:
  // 64 MiB of memory keep a disk busy beside another stream or writes; alone, while one slot is summed after the other, the
  // last twentieth of its rate takes twice as much.
  static constexpr uint64_t kSlotBytes = uint64_t{4} << 20;
  static constexpr size_t kSlots = 16;
  static constexpr size_t kSlotsAlone = 32;

  // Short ranges close to each other in a file are read together, with what lies between them: give them in the order of the file.
  [[nodiscard]] static Result<RangeStream> create(Handle& handle, std::vector<File> files,
                                                  std::vector<FileRange> ranges, std::function<bool()> interrupted,
                                                  size_t slots_max = kSlots);
  RangeStream(RangeStream&&) noexcept = default;
  RangeStream& operator=(RangeStream&&) = delete;
  ~RangeStream();

  // In the order of the ranges and without a gap; ranges of no bytes are left out. Nothing at the end. Blocks. After an error
  // the stream is of no further use.
  [[nodiscard]] Result<std::optional<RangePiece>> next();

 private:
  struct Place {
    size_t range = 0;
    uint64_t offset_bytes = 0;  // in the range
    friend bool operator==(const Place&, const Place&) = default;
  };
  struct Slot {
    std::byte* memory = nullptr;
    Transfer transfer;
    std::byte* data = nullptr;  // of the byte at `begin` in the file
    uint64_t begin_bytes = 0;
    uint64_t end_bytes = 0;
    Place stop;  // the first byte that is not in here
    bool used = false;
  };

  RangeStream(Handle& handle, std::vector<File> files, std::vector<FileRange> ranges, std::function<bool()> interrupted,
              Buffer memory);
  [[nodiscard]] Status fill(Slot& slot);
  [[nodiscard]] Status wait(const Slot& slot) const;
  [[nodiscard]] Place skip_empty(Place place) const;
  [[nodiscard]] bool at_end(Place place) const { return place.range == ranges_.size(); }

  Handle* handle_;
  std::vector<File> files_;
  std::vector<FileRange> ranges_;
  std::function<bool()> interrupted_;
  Buffer memory_;
  std::vector<Slot> slots_;
  size_t slot_ = 0;  // the one that is being handed out
  bool slot_ready_ = false;
  Place asked_;  // the first byte that no slot was asked to hold
  Place given_;  // the first byte that was not handed out
};

}  // namespace headrace::convert
