// SPDX-License-Identifier: Apache-2.0
// A table of the engine's slots with an index by (buffer, step), and a clock hand that looks for an idle one.
// The worker's thread only.
// See the header for ownership.
#include "transfer/memory_slots.h"

#include <algorithm>

namespace headrace::transfer {

MemorySlots::MemorySlots(engine::Engine& engine, Ladder registered)
    : engine_(engine), registered_(registered), slots_(registered == Ladder::never ? 0 : engine.caps().memory_slots) {
  index_.reserve(2 * slots_.size());
}

int32_t MemorySlots::acquire(uint64_t id, Region buffer, const std::byte* data, uint64_t bytes) {
  if (slots_.empty()) return engine::kNotRegistered;
  const auto skipped = static_cast<uint64_t>(data - buffer.data);
  const uint64_t step = skipped / kStepBytes * kStepBytes;
  Key key = {.id = id, .begin = step, .end = std::min(step + kStepBytes, buffer.bytes)};
  if (skipped + bytes > key.end) key = {.id = id, .begin = skipped, .end = skipped + bytes};
  if (const auto found = index_.find(key); found != index_.end()) {
    if (found->second >= 0) ++slots_[static_cast<uint32_t>(found->second)].in_flight;
    return found->second;
  }
  // One refusal says that the limit is reached: asking again for every block would only cost system calls.
  if (refusal_ != 0 && registered_ != Ladder::required) return engine::kNotRegistered;
  const int32_t slot = free_slot();
  if (slot < 0) return engine::kNotRegistered;
  const Region region = {.data = buffer.data + key.begin, .bytes = key.end - key.begin, .device = {}};
  const int rc = engine_.register_memory(static_cast<uint32_t>(slot), region);
  if (rc < 0) {
    refusal_ = rc;
    return engine::kNotRegistered;
  }
  refusal_ = 0;
  slots_[static_cast<uint32_t>(slot)] = {.key = key, .in_flight = 1};
  index_[key] = slot;
  registered_bytes_ += region.bytes;
  return slot;
}

void MemorySlots::release(int32_t slot) noexcept {
  if (slot >= 0) --slots_[static_cast<uint32_t>(slot)].in_flight;
}

void MemorySlots::forget(uint64_t id) noexcept {
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].bytes() != 0 && slots_[slot].key.id == id) drop(slot);
  }
  refusal_ = 0;  // what was given back may be taken again
}

int32_t MemorySlots::free_slot() noexcept {
  int32_t idle = -1;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const uint32_t slot = (hand_ + i) % static_cast<uint32_t>(slots_.size());
    if (slots_[slot].bytes() == 0) {
      hand_ = slot + 1;
      return static_cast<int32_t>(slot);
    }
    if (idle < 0 && slots_[slot].in_flight == 0 && slots_[slot].key.id < kStagingIds) idle = static_cast<int32_t>(slot);
  }
  if (idle >= 0) drop(static_cast<uint32_t>(idle));
  return idle;
}

void MemorySlots::drop(uint32_t slot) noexcept {
  engine_.unregister_memory(slot);
  index_.erase(slots_[slot].key);
  registered_bytes_ -= slots_[slot].bytes();
  slots_[slot] = {};
}

}  // namespace headrace::transfer
