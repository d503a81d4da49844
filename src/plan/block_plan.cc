// SPDX-License-Identifier: Apache-2.0
// The cutting rules. Blocks end at multiples of the block size in the file, so that later blocks are aligned.
// Pure arithmetic; any thread.
// Owns nothing.
#include "plan/block_plan.h"

#include <algorithm>

#include "base/align.h"
#include "base/check.h"

namespace headrace::plan {
namespace {

using base::align_down;
using base::align_up;
using base::is_aligned;

uint64_t next_boundary(uint64_t position, uint64_t step) { return position - position % step + step; }

PlannedBlock exact(uint64_t begin, uint64_t end, bool direct, bool staged) {
  return {.begin = begin, .end = end, .io_begin = begin, .io_end = end, .direct = direct, .staged = staged};
}

// A piece of memory that small costs more as an I/O of its own than as a copy.
bool small_with_neighbours(const Remainder& rest) {
  return rest.region_end < rest.end && rest.region_end - rest.position < kGatherBelowBytes;
}

// Through the page cache up to `limit`: straight from one region, unless the piece is small and has neighbours.
PlannedBlock buffered_block(const Geometry& geometry, Straight straight, const Remainder& rest, uint64_t limit) {
  const uint64_t piece_end = std::min(limit, rest.region_end);
  const bool gather = piece_end < limit && small_with_neighbours(rest);
  if (straight == Straight::never || (straight != Straight::always && gather)) {
    return exact(rest.position, std::min(limit, next_boundary(rest.position, geometry.staged_block_bytes)), false,
                 true);
  }
  return exact(rest.position, std::min(piece_end, next_boundary(rest.position, geometry.block_bytes)), false, false);
}

// Straight and direct from `rest.position`, or an empty block where alignment forbids it.
PlannedBlock straight_direct_block(const Geometry& geometry, const Remainder& rest) {
  const uint64_t end = align_down(std::min(rest.end, rest.region_end), geometry.granule_bytes);
  if (!is_aligned(rest.position, geometry.granule_bytes) || !is_aligned(rest.address, geometry.memory_align_bytes) ||
      end <= rest.position)
    return {};
  return exact(rest.position, std::min(end, next_boundary(rest.position, geometry.block_bytes)), true, false);
}

// The first granule boundary after `position` when blocks from there on can go straight and direct, else `end`.
uint64_t straight_from(const Geometry& geometry, const Remainder& rest) {
  const uint64_t start = align_up(rest.position, geometry.granule_bytes);
  const uint64_t last = align_down(std::min(rest.end, rest.region_end), geometry.granule_bytes);
  const bool possible = start > rest.position && start < last &&
                        is_aligned(rest.address + (start - rest.position), geometry.memory_align_bytes);
  return possible ? start : rest.end;
}

}  // namespace

PlannedBlock next_block(const Geometry& geometry, Direction direction, Straight straight,
                        const Remainder& rest) noexcept {
  HEADRACE_CHECK(rest.end > rest.position && rest.region_end > rest.position);
  if (!geometry.direct) return buffered_block(geometry, straight, rest, rest.end);

  const uint64_t granule = geometry.granule_bytes;
  if (direction == Direction::write) {
    if (!is_aligned(rest.position, granule)) {
      return buffered_block(geometry, straight, rest, std::min(rest.end, align_up(rest.position, granule)));
    }
    if (rest.end - rest.position < granule) return buffered_block(geometry, straight, rest, rest.end);
  }
  if (straight == Straight::if_huge || straight == Straight::always) {
    const PlannedBlock block = straight_direct_block(geometry, rest);
    if (block.end != 0 && (straight == Straight::always || !small_with_neighbours(rest))) return block;
    if (straight == Straight::always) return buffered_block(geometry, straight, rest, straight_from(geometry, rest));
  }
  uint64_t end = std::min(rest.end, next_boundary(rest.position, geometry.staged_block_bytes));
  if (straight == Straight::if_huge) end = std::min(end, straight_from(geometry, rest));
  if (direction == Direction::write) return exact(rest.position, align_down(end, granule), true, true);
  return {.begin = rest.position,
          .end = end,
          .io_begin = align_down(rest.position, granule),
          .io_end = align_up(end, granule),
          .direct = true,
          .staged = true};
}

}  // namespace headrace::plan
