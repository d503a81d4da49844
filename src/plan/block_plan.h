// SPDX-License-Identifier: Apache-2.0
// Cuts a request into blocks: where a block begins and ends, whether it goes direct or buffered, straight or staged.
// Pure arithmetic; any thread.
// Owns nothing.
#pragma once

#include <cstdint>

namespace headrace::plan {

enum class Direction : uint8_t { read, write };

// What one file, the handle's settings and the machine allow. All fields are powers of two but the block sizes, which
// are multiples of `granule_bytes`.
struct Geometry {
  bool direct = false;
  uint32_t memory_align_bytes = 1;        // of an address used in direct I/O
  uint32_t granule_bytes = 4096;          // the larger of direct-I/O offset alignment, file system block and page
  uint64_t block_bytes = 4 << 20;         // largest block that goes straight
  uint64_t staged_block_bytes = 1 << 20;  // size of a staging slot
};

enum class Straight : uint8_t {
  never,    // every block is staged
  if_huge,  // direct blocks go straight, others too (the kernel copies anyway): the memory is known to be on huge pages
  if_buffered,  // direct blocks are staged; buffered ones go straight
  always,       // nothing is staged: what cannot go direct goes buffered
};

// The rest of a run of bytes that are contiguous in the file.
struct Remainder {
  uint64_t position = 0;    // file offset of the next byte
  uint64_t end = 0;         // of the run; above position
  uint64_t region_end = 0;  // file offset at which the memory region of `position` ends; above position, may pass `end`
  uint64_t address = 0;     // of the byte at `position`
};

struct PlannedBlock {
  uint64_t begin = 0, end = 0;  // payload: file offsets
  uint64_t io_begin = 0,
           io_end = 0;  // what is asked of the kernel: wider than the payload only for staged direct reads
  bool direct = false;
  bool staged = false;
};

// A piece of memory below this that has neighbours in the file is gathered with them in a staging slot.
inline constexpr uint64_t kGatherBelowBytes = 64 << 10;

// The next block. It begins at `rest.position` and has at least one byte.
//  - A write never leaves its range: direct blocks are whole granules, the ragged edges are buffered.
//  - A direct block that goes straight is aligned in the file and in memory.
//  - A staged block's I/O range fits a slot of staged_block_bytes.
[[nodiscard]] PlannedBlock next_block(const Geometry& geometry, Direction direction, Straight straight,
                                      const Remainder& rest) noexcept;

}  // namespace headrace::plan
