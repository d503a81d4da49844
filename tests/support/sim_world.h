// SPDX-License-Identifier: Apache-2.0
// What tests of `transfer` on a simulated disk share: the disk with a handle over it, log records, filled buffers.
// One thread makes and drops a World; its handle is for any.
// A World owns its disk, which outlives the handle.
#pragma once

#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <headrace/buffer.h>
#include <headrace/log.h>

#include "tests/support/random_load.h"
#include "tests/support/sim_file_system.h"

namespace headrace::test {

// A disk, a file system on it, and a handle over it.
struct World {
  explicit World(const SimOptions& sim = {}, const HandleOptions& handle_options = {.workers = 1})
      : disk(sim), system(disk), handle(make_sim_handle(disk, handle_options)) {}
  ~World() {
    disk.release();
    EXPECT_EQ(disk.violations(), std::vector<std::string>());
  }
  SimDisk disk;
  SimFileSystem system;
  Handle handle;
};

// What the log sink was told while this lived.
class Records {
 public:
  Records() {
    set_log_sink([this](const LogRecord& record) { messages_.push_back(record.message); });
  }
  ~Records() {
    set_log_sink({});
    flush_dispatcher();
  }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  std::vector<std::string> take() {
    flush_dispatcher();
    return std::exchange(messages_, {});
  }

 private:
  std::vector<std::string> messages_;
};

inline Buffer buffer_of(uint64_t bytes, std::byte fill = {}) {
  Buffer buffer = *Buffer::create(bytes);
  if (bytes != 0) std::memset(buffer.data(), static_cast<int>(fill), bytes);
  return buffer;
}

inline bool holds_pattern(const std::byte* data, uint64_t bytes, uint64_t offset) {
  for (uint64_t i = 0; i < bytes; ++i) {
    if (data[i] != pattern_at(offset + i)) return false;
  }
  return true;
}

// Requests for all of a vector.
inline ReadRequest into(std::vector<std::byte>& target, uint64_t offset = 0) {
  return {.offset_bytes = offset, .target = {target.data(), target.size(), {}}};
}
inline WriteRequest from(const std::vector<std::byte>& source, uint64_t offset = 0,
                         Durability durability = Durability::none) {
  return {.offset_bytes = offset, .source = {source.data(), source.size(), {}}, .durability = durability};
}

}  // namespace headrace::test
