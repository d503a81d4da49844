// SPDX-License-Identifier: Apache-2.0
// The engine contract: accept a prefix of blocks, reap completions. An engine knows no tensors, names, retries or requests.
// One owner thread builds, uses and destroys an engine; wake() alone may be called from any thread.
// Memory given to submit() belongs to the kernel until its completion is reaped; the destructor drains.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <headrace/engine_info.h>
#include <headrace/error.h>
#include <headrace/region.h>

namespace headrace::engine {

enum class Operation : uint8_t { read, write, datasync };

// Through the page cache or past it. The descriptor was opened accordingly; an engine may treat the two differently
// (submitting a buffered block to Linux AIO would block).
enum class Path : uint8_t { direct, buffered };

inline constexpr int32_t kNotRegistered = -1;

struct Block {
  uint64_t cookie = 0;  // comes back in the completion
  Operation operation = Operation::read;
  Path path = Path::buffered;
  int descriptor = -1;
  int32_t memory_slot = kNotRegistered;  // of register_memory(); the bytes lie inside that region
  uint64_t offset_bytes = 0;
  std::byte* data = nullptr;  // not written through when the operation is a write
  uint32_t length_bytes = 0;  // at most caps().block_bytes_max
};

struct Completion {
  uint64_t cookie = 0;
  int64_t result = 0;  // bytes, possibly fewer than asked for, or a negative errno
};

struct Caps {
  uint32_t depth = 0;  // blocks in flight that this engine really holds
  uint32_t block_bytes_max = 0;
  uint32_t memory_slots = 0;  // 0: no registration
  std::string detail;         // flags that worked, for people
};

using Clock = std::chrono::steady_clock;
using Deadline = std::optional<Clock::time_point>;  // none: wait until something happens

class Engine {
 public:
  virtual ~Engine() = default;

  [[nodiscard]] virtual const Caps& caps() const noexcept = 0;

  // Accepts a prefix and returns its length; 0 means full. Never waits for a completion. The rest stays with the caller.
  [[nodiscard]] virtual size_t submit(std::span<const Block> blocks) = 0;

  // Returns what is done, up to completions.size(). With nothing done it waits until something is, until wake(), or until
  // the deadline; it may return 0 early. A deadline in the past polls.
  [[nodiscard]] virtual size_t reap(std::span<Completion> completions, Deadline deadline) = 0;

  // Any thread. Makes the current or the next reap() return.
  virtual void wake() noexcept = 0;

  // Slots are 0..caps().memory_slots-1 and chosen by the caller. A negative errno when refused. A region may be
  // unregistered, and its slot reused, once no block that names it is in flight.
  [[nodiscard]] virtual int register_memory(uint32_t slot, Region region) = 0;
  virtual void unregister_memory(uint32_t slot) = 0;
};

struct EngineOptions {
  uint32_t depth = 32;
};

// Called on the thread that will own the engine. The error says why it cannot work here.
using EngineFactory = std::function<Result<std::unique_ptr<Engine>>(const EngineOptions&)>;

}  // namespace headrace::engine
