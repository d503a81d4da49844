// SPDX-License-Identifier: Apache-2.0
// Other programs that measure disks, run beside headrace on the same files: fio, and gdsio where there is one.
// One thread: that of main().
// Refers to the files, which must outlive it.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <headrace/benchmark.h>

namespace headrace::cli {

// What the other program is to do, which is what headrace does in one repeat.
struct PeerTask {
  IoDirection direction = IoDirection::read;
  EngineKind engine = EngineKind::automatic;  // as settled
  uint64_t block_bytes = 0;
  uint32_t queue_depth = 0;
  uint32_t workers = 0;
  RequestOrder order = RequestOrder::overlapping;
  bool direct = true;
  bool registered = true;
  bool durable = true;
  bool drop_page_cache = true;
  uint64_t bytes = 0;  // from the start of each file
  uint32_t files = 1;  // at once
};

struct PeerSample {
  double seconds = 0;
  double cpu_seconds = 0;
  uint64_t bytes = 0;
};

class Peer {
 public:
  virtual ~Peer() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string version() const = 0;
  // The files at these paths, all at once. The error is in words. `tick` is called meanwhile.
  [[nodiscard]] virtual std::expected<PeerSample, std::string> run(const std::vector<std::string>& paths,
                                                                   const std::function<void()>& tick) = 0;
  // What was run last, with FILE for the paths.
  [[nodiscard]] virtual std::vector<std::string> command() const = 0;
  // What the reader of a comparison should know; empty when there is nothing.
  [[nodiscard]] virtual std::string note() const = 0;
};

// Null, with the reason in words, when the program is not there.
[[nodiscard]] std::expected<std::unique_ptr<Peer>, std::string> find_fio(const PeerTask& task);
[[nodiscard]] std::expected<std::unique_ptr<Peer>, std::string> find_gdsio(const PeerTask& task);

// Free pages of the hugetlb pool, in bytes.
[[nodiscard]] uint64_t free_reserved_bytes();

}  // namespace headrace::cli
