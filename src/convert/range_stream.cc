// SPDX-License-Identifier: Apache-2.0
// The walk over the ranges, done twice: once to ask for slots, once, behind it, to hand out what they hold.
// See the header for threads.
// Owns what the header says.
#include "convert/range_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/align.h"

namespace headrace::convert {
namespace {

// Direct I/O wants file offset and memory address to agree in these bits.
constexpr uint64_t kGranuleBytes = 4096;
// What lies between two ranges is read along if it is no more than this: a disk does not notice.
constexpr uint64_t kGapBytes = uint64_t{64} << 10;
constexpr uint64_t kSlotStride = RangeStream::kSlotBytes + kGranuleBytes;

}  // namespace

RangeStream::RangeStream(Handle& handle, std::vector<File> files, std::vector<FileRange> ranges,
                         std::function<bool()> interrupted, Buffer memory)
    : handle_(&handle),
      files_(std::move(files)),
      ranges_(std::move(ranges)),
      interrupted_(std::move(interrupted)),
      memory_(std::move(memory)) {}

Result<RangeStream> RangeStream::create(Handle& handle, std::vector<File> files, std::vector<FileRange> ranges,
                                        std::function<bool()> interrupted, size_t slots_max) {
  uint64_t bytes = 0;
  for (const FileRange& range : ranges)
    bytes += std::min(range.bytes, slots_max * kSlotBytes);
  // A small file needs few slots, and memory that is never touched costs nothing.
  const size_t slots = std::clamp<uint64_t>(bytes / kSlotBytes + 2, 2, slots_max);
  Result<Buffer> memory = Buffer::create(slots * kSlotStride);
  if (!memory) return std::unexpected(std::move(memory).error());
  RangeStream stream(handle, std::move(files), std::move(ranges), std::move(interrupted), *std::move(memory));
  stream.slots_.resize(slots);
  for (size_t i = 0; i < slots; ++i)
    stream.slots_[i].memory = stream.memory_.data() + i * kSlotStride;
  stream.asked_ = stream.given_ = stream.skip_empty({});
  for (Slot& slot : stream.slots_)
    if (Status filled = stream.fill(slot); !filled) return std::unexpected(std::move(filled).error());
  return stream;
}

RangeStream::~RangeStream() {
  for (Slot& slot : slots_)
    if (slot.used) slot.transfer.abort();
}

RangeStream::Place RangeStream::skip_empty(Place place) const {
  while (!at_end(place) && place.offset_bytes == ranges_[place.range].bytes)
    place = {.range = place.range + 1, .offset_bytes = 0};
  return place;
}

Status RangeStream::fill(Slot& slot) {
  slot.used = !at_end(asked_);
  if (!slot.used) return {};
  const uint32_t file = ranges_[asked_.range].file;
  slot.begin_bytes = ranges_[asked_.range].offset_bytes + asked_.offset_bytes;
  slot.end_bytes = slot.begin_bytes;
  // Ends at a granule, so that only the first and the last slot of a long range are ragged.
  const uint64_t limit = base::align_down(slot.begin_bytes, kGranuleBytes) + kSlotBytes;
  while (!at_end(asked_)) {
    const FileRange& range = ranges_[asked_.range];
    const uint64_t begin = range.offset_bytes + asked_.offset_bytes;
    if (range.file != file || begin < slot.end_bytes || begin - slot.end_bytes > kGapBytes || begin >= limit) break;
    const uint64_t bytes = std::min(range.bytes - asked_.offset_bytes, limit - begin);
    slot.end_bytes = begin + bytes;
    asked_ = skip_empty({.range = asked_.range, .offset_bytes = asked_.offset_bytes + bytes});
  }
  slot.stop = asked_;
  slot.data = slot.memory + slot.begin_bytes % kGranuleBytes;
  Result<Transfer> transfer = handle_->read(
      files_[file], {.offset_bytes = slot.begin_bytes, .target = {slot.data, slot.end_bytes - slot.begin_bytes, {}}});
  if (!transfer) {
    slot.used = false;
    return std::unexpected(std::move(transfer).error());
  }
  slot.transfer = *std::move(transfer);
  return {};
}

Status RangeStream::wait(const Slot& slot) const {
  constexpr auto kAskEvery = std::chrono::milliseconds(100);
  while (!slot.transfer.wait_for(kAskEvery)) {
    if (interrupted_ && interrupted_())
      return std::unexpected(Error{.code = ErrorCode::interrupted, .operation = "read", .detail = "it was stopped"});
  }
  const Result<uint64_t> bytes = slot.transfer.result();
  return bytes ? Status{} : std::unexpected(bytes.error());
}

Result<std::optional<RangePiece>> RangeStream::next() {
  if (at_end(given_)) return std::nullopt;
  if (slot_ready_ && given_ == slots_[slot_].stop) {
    if (Status filled = fill(slots_[slot_]); !filled) return std::unexpected(std::move(filled).error());
    slot_ = (slot_ + 1) % slots_.size();
    slot_ready_ = false;
  }
  const Slot& slot = slots_[slot_];
  if (!slot_ready_) {
    if (interrupted_ && interrupted_())
      return std::unexpected(Error{.code = ErrorCode::interrupted, .operation = "read", .detail = "it was stopped"});
    if (Status ready = wait(slot); !ready) return std::unexpected(std::move(ready).error());
    slot_ready_ = true;
  }
  const FileRange& range = ranges_[given_.range];
  const uint64_t begin = range.offset_bytes + given_.offset_bytes;
  const uint64_t bytes = std::min(range.bytes - given_.offset_bytes, slot.end_bytes - begin);
  const RangePiece piece = {.item = given_.range,
                            .offset_bytes = given_.offset_bytes,
                            .bytes = {slot.data + (begin - slot.begin_bytes), bytes}};
  given_ = skip_empty({.range = given_.range, .offset_bytes = given_.offset_bytes + bytes});
  return piece;
}

}  // namespace headrace::convert
