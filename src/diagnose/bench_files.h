// SPDX-License-Identifier: Apache-2.0
// The files of a benchmark from within: what each holds, how they are filled, and the memory that all measurements share.
// One thread at a time.
// Owns files and memory; shared by a BenchmarkFiles and the measurements made on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <headrace/benchmark.h>
#include <headrace/buffer.h>
#include <headrace/file.h>

#include "diagnose/bench_progress.h"

namespace headrace {

namespace diagnose {
// That these are folders with room for so many bytes of files in each, and some to spare.
[[nodiscard]] Status check_room(const std::vector<std::string>& folders, uint64_t bytes_per_folder);
}  // namespace diagnose

class BenchmarkFiles::Impl {
 public:
  enum class Origin : uint8_t { own, existing };
  // That the first `bytes` of a file are written, and as which pattern, if as one.
  struct Content {
    uint64_t bytes = 0;
    std::optional<uint64_t> key;
  };
  enum class Need : uint8_t { any_bytes, known_bytes };

  [[nodiscard]] static Result<std::shared_ptr<Impl>> create(const BenchmarkFilesOptions& options);
  [[nodiscard]] static Result<std::shared_ptr<Impl>> open_existing(std::span<const std::string> paths,
                                                                   BlockDevice block_device);
  Impl(Origin origin, uint64_t file_bytes) : origin_(origin), file_bytes_(file_bytes) {}

  [[nodiscard]] uint32_t count() const noexcept { return static_cast<uint32_t>(entries_.size()); }
  [[nodiscard]] uint64_t file_bytes() const noexcept { return file_bytes_; }
  [[nodiscard]] Origin origin() const noexcept { return origin_; }
  [[nodiscard]] const File& file(uint32_t index) const { return entries_[index].file; }
  [[nodiscard]] const Content& content(uint32_t index) const { return entries_[index].content; }
  [[nodiscard]] int descriptor(uint32_t index) const;
  [[nodiscard]] uint64_t written_bytes() const noexcept { return written_bytes_; }
  [[nodiscard]] const std::vector<BenchmarkPlace>& places() const noexcept { return places_; }

  // A write is about to begin: what was there is not to be relied on before it ended well.
  void begin_write(uint32_t index) { entries_[index].content = {}; }
  void end_write(uint32_t index, Content content) { entries_[index].content = content; }
  void count_written(uint64_t bytes) noexcept { written_bytes_ += bytes; }

  // What fill() would write into it.
  [[nodiscard]] uint64_t missing_bytes(uint32_t index, uint64_t bytes, Need need) const;
  // Writes the first `bytes` of a file, through to the device, unless they are there. Not for existing files.
  [[nodiscard]] Status fill(uint32_t index, uint64_t bytes, Need need, diagnose::ProgressMeter& meter);

  // At least that much memory of that kind, touched. Measurements share it: one runs at a time.
  [[nodiscard]] Result<Buffer> memory(uint64_t bytes, PageKind pages, diagnose::ProgressMeter& meter);

 private:
  struct Entry {
    File file;
    Content content;
  };

  [[nodiscard]] Status add_own(const std::string& folder);

  const Origin origin_;
  uint64_t file_bytes_;
  std::vector<Entry> entries_;
  std::vector<BenchmarkPlace> places_;
  uint64_t written_bytes_ = 0;
  Buffer memory_;
  PageKind memory_pages_ = PageKind::unknown;  // as asked for
};

}  // namespace headrace
