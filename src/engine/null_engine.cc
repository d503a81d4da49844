// SPDX-License-Identifier: Apache-2.0
// See null_engine.h.
// One owner thread; wake() from any.
// Owns its queue.
#include "engine/null_engine.h"

#include <errno.h>

#include <algorithm>

#include "engine/fixed_ring.h"
#include "engine/limits.h"
#include "engine/wake_event.h"

namespace headrace::engine {
namespace {

class NullEngine final : public Engine {
 public:
  explicit NullEngine(uint32_t depth)
      : caps_{.depth = depth, .block_bytes_max = kBlockBytesMax, .memory_slots = 0, .detail = "moves nothing"},
        done_(depth) {}

  [[nodiscard]] Status open() { return event_.open(WakeEvent::Mode::polled); }

  [[nodiscard]] const Caps& caps() const noexcept override { return caps_; }

  [[nodiscard]] size_t submit(std::span<const Block> blocks) override {
    const size_t accepted = std::min<size_t>(blocks.size(), caps_.depth - done_.size());
    for (const Block& block : blocks.first(accepted)) {
      done_.push(
          {.cookie = block.cookie, .result = block.operation == Operation::datasync ? 0 : int64_t{block.length_bytes}});
    }
    return accepted;
  }

  [[nodiscard]] size_t reap(std::span<Completion> completions, Deadline deadline) override {
    if (completions.empty()) return 0;
    const size_t count = std::min(completions.size(), done_.size());
    for (Completion& completion : completions.first(count))
      completion = done_.pop();
    while (count == 0 && !event_.take_wake() && event_.sleep(deadline)) {
    }
    return count;
  }

  void wake() noexcept override { event_.wake(); }

  [[nodiscard]] int register_memory(uint32_t, Region) override { return -EOPNOTSUPP; }
  void unregister_memory(uint32_t) override {}

 private:
  Caps caps_;
  WakeEvent event_;
  FixedRing<Completion> done_;
};

}  // namespace

Result<std::unique_ptr<Engine>> make_null_engine(const EngineOptions& options) {
  auto engine = std::make_unique<NullEngine>(clamp_depth(options.depth));
  if (Status opened = engine->open(); !opened) return std::unexpected(std::move(opened).error());
  return engine;
}

}  // namespace headrace::engine
