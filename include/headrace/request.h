// SPDX-License-Identifier: Apache-2.0
// What to move: one range of one file, and one or several regions of memory that it is gathered from or scattered to.
// Plain values, read during the call that takes them.
// They own nothing: the regions themselves must outlive the transfer.
#pragma once

#include <cstdint>
#include <span>

#include <headrace/atomic_file.h>
#include <headrace/file.h>
#include <headrace/region.h>

namespace headrace {

// May the bytes pass through a staging slot?
enum class CopyMode : uint8_t {
  automatic,  // straight for memory known to sit on huge pages and aligned, else staged
  always,     // always staged
  never,      // straight from or to the caller's memory: direct where aligned, else buffered
};

// Where do reads come from?
enum class CacheMode : uint8_t {
  automatic,  // from the page cache when half or more of a large request sits there, else from the device
  use,        // through the page cache
  bypass,     // from the device
};

enum class EndOfFile : uint8_t {
  is_an_error,  // a file that ends early fails the read (the bytes before the end are in place)
  is_a_count,   // the result is the number of bytes read
};

inline constexpr int kPriorityMin = -128;
inline constexpr int kPriorityMax = 127;

enum class Checksum : uint8_t {
  none,
  crc32,  // of the request's bytes, as zip and zlib define it: see Transfer::crc32
};

struct ReadRequest {
  uint64_t offset_bytes = 0;
  Region target = {};
  std::span<const Region> targets = {};  // more regions, filled in order after `target`
  int priority = 0;                      // kPriorityMin..kPriorityMax; higher goes first, block by block
  CopyMode copy = CopyMode::automatic;
  CacheMode cache = CacheMode::automatic;
  EndOfFile end_of_file = EndOfFile::is_an_error;
  Checksum checksum = Checksum::none;
};

enum class Truncate : uint8_t {
  no,
  at_start,  // the file is cut to zero length once the call is accepted, before anything of it is written
};

struct WriteRequest {
  uint64_t offset_bytes = 0;
  ConstRegion source = {};
  std::span<const ConstRegion> sources = {};  // more regions, written in order after `source`
  int priority = 0;
  CopyMode copy = CopyMode::automatic;
  Durability durability = Durability::none;
  Truncate truncate = Truncate::no;
  Checksum checksum = Checksum::none;
};

struct ReadItem {
  File file;
  ReadRequest request;
};

struct WriteItem {
  File file;
  WriteRequest request;
};

}  // namespace headrace
