// SPDX-License-Identifier: Apache-2.0
// See aio_engine.h. Kernel contexts, helper threads and wake() all signal one eventfd, on which reap() sleeps.
// One owner thread; wake() from any.
// Owns the context, the threads and the event.
#include "engine/aio_engine.h"

#include <errno.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/fixed_ring.h"
#include "engine/limits.h"
#include "engine/thread_pool_io.h"
#include "engine/wake_event.h"
#include "os/aio_syscalls.h"

namespace headrace::engine {
namespace {

constexpr uint32_t kDepthLeast = 8;   // less than this is not tried when contexts are short
constexpr size_t kEventsAtOnce = 64;  // on the stack of reap()

struct Context {
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() {  // io_destroy returns when nothing is in flight any more
    if (id != 0) (void)os::io_destroy(id);
  }

  [[nodiscard]] Status open(uint32_t depth_wanted);

  aio_context_t id = 0;
  uint32_t depth = 0;
};

class AioEngine final : public Engine {
 public:
  explicit AioEngine(uint32_t depth)
      : caps_{.depth = depth, .block_bytes_max = kBlockBytesMax, .memory_slots = 0, .detail = {}},
        iocbs_(std::make_unique<iocb[]>(depth)),
        batch_(std::make_unique<iocb*[]>(depth)),
        refused_(depth),
        threads_(depth, event_) {
    for (uint32_t i = 0; i < depth; ++i)
      batch_[i] = &iocbs_[i];
    caps_.detail =
        fmt::format("direct blocks by the kernel, buffered ones on up to {} threads", threads_.threads_max());
  }

  // Takes the context over.
  [[nodiscard]] Status open(Context& context);

  [[nodiscard]] const Caps& caps() const noexcept override { return caps_; }
  [[nodiscard]] size_t submit(std::span<const Block> blocks) override;
  [[nodiscard]] size_t reap(std::span<Completion> completions, Deadline deadline) override;
  void wake() noexcept override { event_.wake(); }
  [[nodiscard]] int register_memory(uint32_t, Region) override { return -EOPNOTSUPP; }
  void unregister_memory(uint32_t) override {}

 private:
  [[nodiscard]] size_t submit_to_kernel(std::span<const Block> blocks);
  void prepare(iocb& control, const Block& block) const;
  [[nodiscard]] size_t take_done(std::span<Completion> completions);
  [[nodiscard]] size_t take_kernel_events(std::span<Completion> completions);
  [[nodiscard]] size_t in_flight() const noexcept { return kernel_in_flight_ + refused_.size() + threads_.in_flight(); }

  Caps caps_;
  WakeEvent event_;  // before all that signals it
  Context context_;  // drains when it goes, as threads_ does
  uint32_t kernel_in_flight_ = 0;
  std::unique_ptr<iocb[]> iocbs_;  // read by the kernel during io_submit only
  std::unique_ptr<iocb*[]> batch_;
  FixedRing<Completion> refused_;  // by io_submit itself
  IoThreads threads_;
};

bool belongs_to_threads(const Block& block) {
  return block.path == Path::buffered || block.operation == Operation::datasync;
}

Status AioEngine::open(Context& context) {
  if (Status opened = event_.open(WakeEvent::Mode::polled); !opened) return opened;
  std::swap(context_.id, context.id);
  return {};
}

// Runs of blocks of one kind go out together, in order, so that what is accepted is a prefix.
size_t AioEngine::submit(std::span<const Block> blocks) {
  blocks = blocks.first(std::min<size_t>(blocks.size(), caps_.depth - in_flight()));
  size_t accepted = 0;
  while (accepted < blocks.size()) {
    const auto rest = blocks.subspan(accepted);
    const bool to_threads = belongs_to_threads(rest.front());
    const auto end =
        std::ranges::find_if(rest, [&](const Block& block) { return belongs_to_threads(block) != to_threads; });
    const auto run = rest.first(static_cast<size_t>(end - rest.begin()));
    const size_t taken = to_threads ? threads_.submit(run) : submit_to_kernel(run);
    accepted += taken;
    if (taken < run.size()) break;
  }
  return accepted;
}

size_t AioEngine::submit_to_kernel(std::span<const Block> blocks) {
  for (size_t i = 0; i < blocks.size(); ++i)
    prepare(iocbs_[i], blocks[i]);
  size_t accepted = 0;
  while (accepted < blocks.size()) {
    const long taken = os::io_submit(context_.id, static_cast<long>(blocks.size() - accepted), batch_.get() + accepted);
    if (taken > 0) {
      accepted += static_cast<size_t>(taken);
      kernel_in_flight_ += static_cast<uint32_t>(taken);
    } else if (taken == -EAGAIN) {
      // Full, or the kernel is short of memory. With nothing in flight no completion would ever end the caller's wait.
      if (in_flight() == 0) accepted += threads_.submit(blocks.subspan(accepted, 1));
      break;
    } else {
      refused_.push({.cookie = blocks[accepted].cookie, .result = taken < 0 ? taken : -EIO});
      ++accepted;
    }
  }
  return accepted;
}

void AioEngine::prepare(iocb& control, const Block& block) const {
  control = {};
  control.aio_data = block.cookie;
  control.aio_lio_opcode = block.operation == Operation::write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
  control.aio_fildes = static_cast<uint32_t>(block.descriptor);
  control.aio_buf = reinterpret_cast<uintptr_t>(block.data);
  control.aio_nbytes = block.length_bytes;
  control.aio_offset = static_cast<int64_t>(block.offset_bytes);
  control.aio_flags = IOCB_FLAG_RESFD;
  control.aio_resfd = static_cast<uint32_t>(event_.descriptor());
}

size_t AioEngine::reap(std::span<Completion> completions, Deadline deadline) {
  if (completions.empty()) return 0;
  for (;;) {
    const size_t count = take_done(completions);
    if (count > 0 || event_.take_wake() || !event_.sleep(deadline)) return count;
  }
}

size_t AioEngine::take_done(std::span<Completion> completions) {
  size_t count = 0;
  while (count < completions.size() && !refused_.empty())
    completions[count++] = refused_.pop();
  count += threads_.reap(completions.subspan(count));
  count += take_kernel_events(completions.subspan(count));
  return count;
}

size_t AioEngine::take_kernel_events(std::span<Completion> completions) {
  io_event events[kEventsAtOnce];
  size_t count = 0;
  while (count < completions.size() && kernel_in_flight_ > 0) {
    timespec no_time = {};
    const size_t wanted = std::min<size_t>({completions.size() - count, kEventsAtOnce, kernel_in_flight_});
    const long got = os::io_getevents(context_.id, 0, static_cast<long>(wanted), events, &no_time);
    if (got <= 0) break;
    kernel_in_flight_ -= static_cast<uint32_t>(got);
    for (long i = 0; i < got; ++i)
      completions[count++] = {.cookie = events[i].data, .result = events[i].res};
    if (static_cast<size_t>(got) < wanted) break;
  }
  return count;
}

Status Context::open(uint32_t depth_wanted) {
  int result = 0;
  for (depth = depth_wanted;; depth = std::max(depth / 2, kDepthLeast)) {
    result = os::io_setup(depth, &id);
    if (result != -EAGAIN || depth <= kDepthLeast) break;
  }
  // A filter may allow the set-up and forbid the use.
  if (result == 0) result = static_cast<int>(os::io_submit(id, 0, nullptr));
  if (result == 0) return {};
  Error error = {.code = ErrorCode::unavailable, .errno_value = -result, .operation = "io_setup"};
  switch (-result) {
    case EAGAIN:
      error.detail =
          "the system's places for asynchronous I/O are used up; raise the limit with "
          "`sysctl fs.aio-max-nr=1048576` (fs.aio-nr tells how many are in use), or use another engine";
      break;
    case ENOSYS:
    case EPERM:
      error.detail = "this kernel has no native AIO, or a seccomp profile forbids it; use another engine";
      break;
    default: error.detail = "native AIO cannot be set up here; use another engine";
  }
  return std::unexpected(std::move(error));
}

}  // namespace

Result<std::unique_ptr<Engine>> make_aio_engine(const EngineOptions& options) {
  Context context;
  if (Status opened = context.open(clamp_depth(options.depth)); !opened) {
    return std::unexpected(std::move(opened).error());
  }
  auto engine = std::make_unique<AioEngine>(context.depth);
  if (Status opened = engine->open(context); !opened) return std::unexpected(std::move(opened).error());
  return engine;
}

}  // namespace headrace::engine
