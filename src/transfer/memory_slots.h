// SPDX-License-Identifier: Apache-2.0
// Which pieces of which Buffers, and which staging slots, are registered with one worker's engine.
// The worker's thread only.
// Owns the engine's slots; registers on demand, gives up the oldest idle one when all are taken.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <headrace/handle.h>
#include <headrace/region.h>

#include "engine/engine.h"

namespace headrace::transfer {

class MemorySlots {
 public:
  // A Buffer is registered in steps of this size, so that a small locked-memory limit is not asked for all of it at once.
  // A block that crosses from one step into the next is registered by itself.
  static constexpr uint64_t kStepBytes = uint64_t{64} << 20;
  // Ids of staging slots: no Buffer's id reaches there.
  static constexpr uint64_t kStagingIds = uint64_t{1} << 63;

  // After a refusal nothing more is asked for, unless registration is required.
  MemorySlots(engine::Engine& engine, Ladder registered);

  // The slot that holds [data, data + bytes), registered now if need be, with one more block in flight on it; or
  // engine::kNotRegistered. `buffer` is the whole of what the id names.
  [[nodiscard]] int32_t acquire(uint64_t id, Region buffer, const std::byte* data, uint64_t bytes);
  // A block that used `slot` is back.
  void release(int32_t slot) noexcept;
  // Every slot of this id; none of them is in flight.
  void forget(uint64_t id) noexcept;

  // The negative errno of the last registration that the kernel refused, or 0.
  [[nodiscard]] int refusal() const noexcept { return refusal_; }
  [[nodiscard]] bool possible() const noexcept { return !slots_.empty(); }
  [[nodiscard]] uint64_t registered_bytes() const noexcept { return registered_bytes_; }

 private:
  struct Key {
    uint64_t id = 0;
    uint64_t begin = 0, end = 0;  // within the Buffer
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const noexcept {
      return static_cast<size_t>((key.id * 0x9E3779B97F4A7C15U) ^ (key.begin * 0xC2B2AE3D27D4EB4FU) ^ key.end);
    }
  };
  struct Slot {
    Key key;
    uint32_t in_flight = 0;
    [[nodiscard]] uint64_t bytes() const noexcept { return key.end - key.begin; }  // 0: free
  };

  [[nodiscard]] int32_t free_slot() noexcept;
  void drop(uint32_t slot) noexcept;

  engine::Engine& engine_;
  const Ladder registered_;
  std::vector<Slot> slots_;
  std::unordered_map<Key, int32_t, KeyHash> index_;  // kNotRegistered: refused, not to be tried again
  uint32_t hand_ = 0;
  int refusal_ = 0;
  uint64_t registered_bytes_ = 0;
};

}  // namespace headrace::transfer
