// SPDX-License-Identifier: Apache-2.0
// What must be true of every cut of a request into blocks, said independently of how the cut is made.
// Shared by the unit test of plan::next_block and by its fuzz target.
// Pure; any thread; owns nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "plan/block_plan.h"

namespace headrace::test {

// A run of bytes contiguous in the file that lies in several regions of memory.
struct PlanCase {
  plan::Geometry geometry;
  plan::Direction direction = plan::Direction::read;
  plan::Straight straight = plan::Straight::never;
  uint64_t begin = 0;
  struct Piece {
    uint64_t address = 0;
    uint64_t bytes = 0;  // above 0
  };
  std::vector<Piece> regions;  // one at least
};

// No block is shorter than it must be for ever: a plan of `bytes` in `regions` regions may take this many. Each region
// adds a few cuts (its end, its unaligned head), each block size of bytes one, and each granule-sized edge one more.
inline uint64_t plan_blocks_max(const PlanCase& plan, uint64_t bytes) {
  const uint64_t smaller = std::min(plan.geometry.block_bytes, plan.geometry.staged_block_bytes);
  return bytes / smaller + 6 * (plan.regions.size() + 1);
}

// Walks the whole run and returns what is wrong with the blocks, or nothing.
inline std::optional<std::string> plan_fault(const PlanCase& test) {
  const plan::Geometry& geometry = test.geometry;
  uint64_t end = test.begin;
  for (const PlanCase::Piece& region : test.regions)
    end += region.bytes;
  const uint64_t blocks_max = plan_blocks_max(test, end - test.begin);

  uint64_t position = test.begin;
  uint64_t region_begin = test.begin;
  size_t region = 0;
  uint64_t blocks = 0;
  while (position < end) {
    while (position >= region_begin + test.regions[region].bytes)
      region_begin += test.regions[region++].bytes;
    const uint64_t region_end = region_begin + test.regions[region].bytes;
    const uint64_t address = test.regions[region].address + (position - region_begin);
    const plan::PlannedBlock block =
        plan::next_block(geometry, test.direction, test.straight,
                         {.position = position, .end = end, .region_end = region_end, .address = address});
    const auto fault = [&](const char* what) {
      return fmt::format("{}: block [{}, {}) io [{}, {}) {} {}, run [{}, {}), region ends at {}, address {:#x}", what,
                         block.begin, block.end, block.io_begin, block.io_end, block.direct ? "direct" : "buffered",
                         block.staged ? "staged" : "straight", test.begin, end, region_end, address);
    };
    if (block.begin != position) return fault("does not begin where the last one ended");
    if (block.end <= block.begin) return fault("is empty");
    if (block.end > end) return fault("leaves the run");
    if (block.io_begin > block.begin || block.io_end < block.end) return fault("asks for less than it delivers");
    if (block.direct && !geometry.direct) return fault("is direct where that was refused");
    const bool wider = block.io_begin != block.begin || block.io_end != block.end;
    if (wider && test.direction == plan::Direction::write) return fault("writes outside its range");
    if (wider && !(block.direct && block.staged)) return fault("is widened but neither direct nor staged");
    if (block.direct) {
      if (block.io_begin % geometry.granule_bytes != 0) return fault("direct I/O begins inside a granule");
      if (block.io_end % geometry.granule_bytes != 0) return fault("direct I/O ends inside a granule");
      if (block.begin - block.io_begin >= geometry.granule_bytes) return fault("reads a granule nobody wants in front");
      if (block.io_end - block.end >= geometry.granule_bytes) return fault("reads a granule nobody wants behind");
    }
    if (block.staged) {
      if (block.io_end - block.io_begin > geometry.staged_block_bytes) return fault("does not fit a staging slot");
      if (test.straight == plan::Straight::always) return fault("is staged although copies are forbidden");
    } else {
      if (block.end > region_end) return fault("goes straight past the end of its region");
      if (block.end - block.begin > geometry.block_bytes) return fault("is larger than a block");
      if (block.direct && address % geometry.memory_align_bytes != 0)
        return fault("is direct from a misaligned address");
      if (test.straight == plan::Straight::never) return fault("goes straight although it was to be staged");
      if (test.straight == plan::Straight::if_buffered && block.direct) return fault("goes direct from small pages");
    }
    // Nothing that could go direct may go buffered: a whole granule of a write, any byte of a read.
    if (geometry.direct && !block.direct && test.straight != plan::Straight::always) {
      if (test.direction == plan::Direction::read) return fault("is a buffered read");
      if (block.end - block.begin >= geometry.granule_bytes)
        return fault("is buffered although it holds a whole granule");
    }
    position = block.end;
    if (++blocks > blocks_max) return fault("is one too many");
  }
  return std::nullopt;
}

}  // namespace headrace::test
