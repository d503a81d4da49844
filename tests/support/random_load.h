// SPDX-License-Identifier: Apache-2.0
// Random requests against one handle, every byte of which is held against a model: what was read, what was written,
// what lies around both in memory and in the file, and what failed requests say of themselves.
// One thread per RandomLoad; several may share a handle and its files, each with a span of the written file to itself.
// Owns its memory; borrows the handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <headrace/handle.h>

namespace headrace::test {

// The byte at `offset` of every file that loads read from.
[[nodiscard]] std::byte pattern_at(uint64_t offset) noexcept;
[[nodiscard]] std::vector<std::byte> pattern(uint64_t bytes);

struct RandomLoadOptions {
  uint64_t seed = 1;
  File read_file;  // holds pattern() to its end
  uint64_t read_file_bytes = 0;
  File write_file;
  uint64_t span_begin = 0;  // of the written file, this load's own
  uint64_t span_bytes = 0;
  uint64_t length_max = 300'000;
  uint32_t requests_max = 24;  // of a batch
  // Bytes of the written file as they are now; may be fewer at its end.
  std::function<std::vector<std::byte>(uint64_t offset, uint64_t length)> read_back;
  // Called before some submissions, and again once cancels and aborts were tried: lets a test hold the disk meanwhile.
  std::function<void()> hold = [] {};
  std::function<void()> release = [] {};
  // Whether a request over this range may fail so. Cancels, aborts and ends of file are judged by the load itself.
  std::function<bool(const Error& error)> may_fail = [](const Error&) { return false; };
};

struct RandomLoadCounts {
  uint64_t requests = 0, bytes = 0, failed = 0, cancelled = 0, aborted = 0, ended = 0, timeouts = 0, sums = 0;
};

class RandomLoad {
 public:
  RandomLoad(Handle& handle, RandomLoadOptions options);
  ~RandomLoad();
  RandomLoad(const RandomLoad&) = delete;
  RandomLoad& operator=(const RandomLoad&) = delete;

  // One batch from submission to verdict. Returns what is wrong; empty: nothing.
  [[nodiscard]] std::vector<std::string> run_batch();
  [[nodiscard]] const RandomLoadCounts& counts() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::test
