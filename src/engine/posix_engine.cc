// SPDX-License-Identifier: Apache-2.0
// See posix_engine.h; the work is done in thread_pool_io.
// One owner thread; wake() from any.
// Owns its threads and the event that they signal.
#include "engine/posix_engine.h"

#include <errno.h>

#include <fmt/format.h>

#include "engine/limits.h"
#include "engine/thread_pool_io.h"
#include "engine/wake_event.h"

namespace headrace::engine {
namespace {

class PosixEngine final : public Engine {
 public:
  explicit PosixEngine(uint32_t depth)
      : caps_{.depth = depth, .block_bytes_max = kBlockBytesMax, .memory_slots = 0, .detail = {}},
        threads_(depth, event_) {
    caps_.detail = fmt::format("up to {} threads", threads_.threads_max());
  }

  [[nodiscard]] Status open() {
    if (Status opened = event_.open(WakeEvent::Mode::polled); !opened) return opened;
    return threads_.start_first();
  }

  [[nodiscard]] const Caps& caps() const noexcept override { return caps_; }

  [[nodiscard]] size_t submit(std::span<const Block> blocks) override { return threads_.submit(blocks); }

  [[nodiscard]] size_t reap(std::span<Completion> completions, Deadline deadline) override {
    if (completions.empty()) return 0;
    for (;;) {
      const size_t count = threads_.reap(completions);
      if (count > 0 || event_.take_wake() || !event_.sleep(deadline)) return count;
    }
  }

  void wake() noexcept override { event_.wake(); }

  [[nodiscard]] int register_memory(uint32_t, Region) override { return -EOPNOTSUPP; }
  void unregister_memory(uint32_t) override {}

 private:
  Caps caps_;
  WakeEvent event_;  // before the threads that signal it
  IoThreads threads_;
};

}  // namespace

Result<std::unique_ptr<Engine>> make_posix_engine(const EngineOptions& options) {
  auto engine = std::make_unique<PosixEngine>(clamp_depth(options.depth));
  if (Status opened = engine->open(); !opened) return std::unexpected(std::move(opened).error());
  return engine;
}

}  // namespace headrace::engine
