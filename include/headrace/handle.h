// SPDX-License-Identifier: Apache-2.0
// The entry point: owns workers, staging memory and limits, and accepts requests from any thread.
// Not a singleton. In a forked child every call answers ErrorCode::closed: make a new handle there.
// The handle keeps what the kernel holds alive until the kernel lets go, also when close() gives up on a stuck device.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <headrace/buffer.h>
#include <headrace/engine_info.h>
#include <headrace/error.h>
#include <headrace/request.h>
#include <headrace/transfer.h>

namespace headrace {

// A feature that has a slower substitute.
enum class Ladder : uint8_t {
  automatic,  // used where it works; the substitute is reported once and shows in Route
  never,
  required,  // an error where it does not work
};

enum class WhenFull : uint8_t { wait, fail };

inline constexpr uint32_t kWorkersMax = 64;
inline constexpr uint64_t kBlockBytesMin = uint64_t{4} << 10;  // and what block_bytes is a multiple of
inline constexpr uint64_t kBlockBytesMax = uint64_t{1} << 30;
inline constexpr uint32_t kQueueDepthMax = 4096;

struct HandleOptions {
  EngineKind engine = EngineKind::automatic;
  uint32_t workers = 0;           // I/O threads, 1..kWorkersMax; 0: one per processor, at most 4
  uint64_t block_bytes = 0;       // largest piece of one system call, kBlockBytesMin..kBlockBytesMax; 0: 4 MiB
  uint32_t queue_depth = 0;       // blocks in flight per worker, 1..kQueueDepthMax; 0: see `HandleFacts`
  uint64_t staging_bytes = 0;     // upper bound of staging memory of the whole handle; 0: at most 256 MiB
  uint32_t requests_max = 65536;  // unfinished requests
  WhenFull when_full = WhenFull::wait;
  Ladder direct = Ladder::automatic;
  Ladder registered = Ladder::automatic;
  PageKind staging_pages = PageKind::transparent;  // `reserved` takes hugetlb pages
  // Asked ten times a second by a submission that waits for room; true ends it with ErrorCode::interrupted. Requests of
  // a bulk call that had room go on. Called in the submitting thread; it must not throw.
  std::function<bool()> interrupted = {};
};

// What create() settled on.
struct HandleFacts {
  EngineKind engine = EngineKind::automatic;
  std::string engine_detail;  // flags that worked, or why the better engines were not taken
  uint32_t workers = 0;
  uint64_t block_bytes = 0;
  uint64_t staged_block_bytes = 0;
  uint32_t queue_depth = 0;
  uint64_t staging_bytes = 0;
  uint32_t requests_max = 0;
};

struct DirectionStats {
  uint64_t requests = 0;  // finished, whatever the result
  uint64_t failed = 0;
  uint64_t bytes = 0;   // payload moved
  uint64_t blocks = 0;  // system-level transfers
  uint64_t direct_bytes = 0;
  uint64_t buffered_bytes = 0;
  uint64_t staged_bytes = 0;
  uint64_t registered_bytes = 0;
  // From submission to done, in nanoseconds: 50th, 90th, 99th, 99.9th percentile and maximum (within 7 %).
  std::array<uint64_t, 5> latency_ns = {};
};

struct HandleStats {
  DirectionStats reads;
  DirectionStats writes;
  std::map<int, uint64_t> errors_by_errno;  // failed requests; 0 collects those without an errno
  uint64_t unfinished_requests = 0;
  uint64_t staging_bytes_in_use = 0;  // staging memory ever touched
  uint64_t memory_registered_bytes = 0;
};

namespace transfer {
class HandleState;
}

class HEADRACE_EXPORT Handle {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  [[nodiscard]] static Result<Handle> create(const HandleOptions& options = {});

  Handle() noexcept = default;
  Handle(Handle&&) noexcept;
  Handle& operator=(Handle&&) noexcept;
  // Aborts unfinished reads, finishes unfinished writes, then closes. After 30 s on a stuck device it lets the workers
  // go on by themselves: what they hold stays alive until the device answers.
  ~Handle();

  // Any number of requests may be unfinished, up to requests_max. An error here means that nothing was started.
  [[nodiscard]] Result<Transfer> read(const File& file, const ReadRequest& request);
  [[nodiscard]] Result<Transfer> write(const File& file, const WriteRequest& request);
  // One submission. Ranges of one file that touch each other are moved together. The results are in the order of the items.
  // All items are checked before any is started. Writes with Durability::data share one datasync per file (one for each
  // batch that requests_max lets in).
  [[nodiscard]] Result<std::vector<Transfer>> read_many(std::span<const ReadItem> items);
  [[nodiscard]] Result<std::vector<Transfer>> write_many(std::span<const WriteItem> items);
  // The whole file, atomically: see AtomicFile. The commit is part of the transfer.
  [[nodiscard]] Result<Transfer> replace(const std::string& path, const WriteRequest& request);

  // Takes no more requests, waits for the unfinished ones, frees everything. timed_out when a device does not
  // answer (negative: wait for ever). Fails with the first error of a write whose result nobody asked for. Safe to call twice.
  [[nodiscard]] Status close(Nanoseconds timeout = Nanoseconds{-1});
  [[nodiscard]] bool is_open() const noexcept;

  [[nodiscard]] HandleFacts facts() const;
  [[nodiscard]] HandleStats stats() const;

  // For the library's own layers.
  explicit Handle(std::shared_ptr<transfer::HandleState> state) noexcept;
  [[nodiscard]] const std::shared_ptr<transfer::HandleState>& internal() const noexcept { return state_; }

 private:
  std::shared_ptr<transfer::HandleState> state_;
};

}  // namespace headrace
