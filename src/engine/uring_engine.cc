// SPDX-License-Identifier: Apache-2.0
// See uring_engine.h; the ring itself is made in uring_setup.
// One owner thread; wake() from any.
// Owns the ring, the table of cookies and the eight bytes that the wake-up read fills.
#include "engine/uring_engine.h"

#include <errno.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include <liburing.h>

#include "base/check.h"
#include "engine/deadline.h"
#include "engine/fixed_ring.h"
#include "engine/limits.h"
#include "engine/uring_setup.h"
#include "engine/wake_event.h"

namespace headrace::engine {
namespace {

constexpr uint64_t kWakeTag =
    UINT64_MAX;  // user_data of the wake-up read; every other user_data is a place in cookies_
constexpr int64_t kBackOffNs = 10'000'000;
constexpr auto kPatience = std::chrono::seconds(2);  // with a kernel that takes nothing

class UringEngine final : public Engine {
 public:
  UringEngine() = default;
  ~UringEngine() override;

  [[nodiscard]] Status open(uint32_t depth);

  [[nodiscard]] const Caps& caps() const noexcept override { return caps_; }
  [[nodiscard]] size_t submit(std::span<const Block> blocks) override;
  [[nodiscard]] size_t reap(std::span<Completion> completions, Deadline deadline) override;
  void wake() noexcept override { event_.wake(); }
  [[nodiscard]] int register_memory(uint32_t slot, Region region) override;
  void unregister_memory(uint32_t slot) override;

 private:
  struct Harvest {
    size_t count = 0;
    bool woken = false;
  };
  enum class Wait { again, over };

  void prepare(io_uring_sqe* entry, const Block& block);
  void flush();
  void arm_wake();
  Harvest harvest(std::span<Completion> completions);
  Wait wait(Deadline deadline);
  void wait_for_room(Deadline deadline, int errno_value);
  void give_back_unsent(int errno_value);
  [[nodiscard]] size_t in_flight() const noexcept { return caps_.depth - free_count_; }

  Ring ring_;
  Caps caps_;
  WakeEvent event_;
  std::unique_ptr<uint64_t> wake_bytes_ = std::make_unique<uint64_t>(0);  // the kernel writes here while wake_armed_
  bool wake_armed_ = false;
  std::unique_ptr<uint64_t[]> cookies_;  // of the blocks in flight, by place
  std::unique_ptr<uint32_t[]> free_;     // places not in use: the first free_count_
  size_t free_count_ = 0;
  std::optional<Clock::time_point> refused_since_;  // the kernel has taken nothing
  FixedRing<Completion> given_back_{0};             // their places are not free before they are reaped
};

Status UringEngine::open(uint32_t depth) {
  if (Status opened = event_.open(WakeEvent::Mode::read_by_ring); !opened) return opened;
  if (Status opened = ring_.open(depth); !opened) return opened;
  cookies_ = std::make_unique<uint64_t[]>(ring_.depth);
  free_ = std::make_unique<uint32_t[]>(ring_.depth);
  for (uint32_t i = 0; i < ring_.depth; ++i)
    free_[i] = ring_.depth - 1 - i;
  free_count_ = ring_.depth;
  given_back_ = FixedRing<Completion>(ring_.depth);
  caps_ = {.depth = ring_.depth,  // with free_count_, after all that may throw: the destructor drains the difference
           .block_bytes_max = kBlockBytesMax,
           .memory_slots = ring_.memory_slots,
           .detail = std::move(ring_.detail)};
  arm_wake();
  flush();
  if (harvest({}).woken) {  // nobody has signalled: reap() would never sleep
    return std::unexpected(Error{.code = ErrorCode::unavailable,
                                 .operation = "read",
                                 .detail = "io_uring on this kernel cannot wait for an eventfd; use another engine"});
  }
  return {};
}

// Everything that the kernel may still write to is waited for before the ring goes.
UringEngine::~UringEngine() {
  std::array<Completion, 64> ignored;
  while (in_flight() > 0)
    (void)reap(ignored, std::nullopt);
  if (wake_armed_) event_.signal();
  while (wake_armed_ && !(refused_since_ && Clock::now() - *refused_since_ > kPatience)) {
    (void)wait(std::nullopt);
    (void)harvest(ignored);
  }
  if (wake_armed_) (void)wake_bytes_.release();  // the kernel will not be asked, and may write there yet
}

size_t UringEngine::submit(std::span<const Block> blocks) {
  size_t accepted = 0;
  while (accepted < blocks.size() && free_count_ > 0) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_.ring);
    if (entry == nullptr) break;  // only when the kernel would not take what was queued before
    prepare(entry, blocks[accepted++]);
  }
  flush();
  return accepted;
}

void UringEngine::prepare(io_uring_sqe* entry, const Block& block) {
  const int slot = block.memory_slot;
  switch (block.operation) {
    case Operation::read:
      if (slot == kNotRegistered) {
        io_uring_prep_read(entry, block.descriptor, block.data, block.length_bytes, block.offset_bytes);
      } else {
        io_uring_prep_read_fixed(entry, block.descriptor, block.data, block.length_bytes, block.offset_bytes, slot);
      }
      break;
    case Operation::write:
      if (slot == kNotRegistered) {
        io_uring_prep_write(entry, block.descriptor, block.data, block.length_bytes, block.offset_bytes);
      } else {
        io_uring_prep_write_fixed(entry, block.descriptor, block.data, block.length_bytes, block.offset_bytes, slot);
      }
      break;
    case Operation::datasync: io_uring_prep_fsync(entry, block.descriptor, IORING_FSYNC_DATASYNC); break;
  }
  const uint32_t place = free_[--free_count_];
  cookies_[place] = block.cookie;
  io_uring_sqe_set_data64(entry, place);
}

// An entry that the kernel refuses completes with its errno and ends that call early, so it is called until nothing is
// left. What the kernel will not take now (EAGAIN, EBUSY) stays queued in the ring, and wait() offers it again.
void UringEngine::flush() {
  while (io_uring_sq_ready(&ring_.ring) > 0) {
    if (io_uring_submit(&ring_.ring) <= 0) return;
  }
}

size_t UringEngine::reap(std::span<Completion> completions, Deadline deadline) {
  if (completions.empty()) return 0;
  arm_wake();
  for (Wait state = Wait::again;;) {
    const Harvest got = harvest(completions);
    if (got.count > 0 || got.woken || state == Wait::over) return got.count;
    state = wait(deadline);
  }
}

// The entry goes to the kernel with the next call that enters it. There is room: the ring has one entry more than blocks.
void UringEngine::arm_wake() {
  if (wake_armed_) return;
  io_uring_sqe* entry = io_uring_get_sqe(&ring_.ring);
  if (entry == nullptr) return;
  io_uring_prep_read(entry, event_.descriptor(), wake_bytes_.get(), sizeof *wake_bytes_, 0);
  io_uring_sqe_set_data64(entry, kWakeTag);
  wake_armed_ = true;
}

UringEngine::Harvest UringEngine::harvest(std::span<Completion> completions) {
  Harvest got;
  while (!given_back_.empty() && got.count < completions.size()) {
    completions[got.count] = given_back_.pop();
    const auto place = static_cast<uint32_t>(completions[got.count].cookie);
    completions[got.count++].cookie = cookies_[place];
    free_[free_count_++] = place;
  }
  unsigned head = 0;
  unsigned seen = 0;
  io_uring_cqe* entry = nullptr;
  io_uring_for_each_cqe(&ring_.ring, head, entry) {
    if (entry->user_data == kWakeTag) {
      wake_armed_ = false;
      got.woken = true;
      (void)event_.take_wake();
    } else {
      if (got.count == completions.size()) break;
      HEADRACE_CHECK(entry->user_data < caps_.depth);
      const auto place = static_cast<uint32_t>(entry->user_data);
      completions[got.count++] = {.cookie = cookies_[place], .result = entry->res};
      free_[free_count_++] = place;
    }
    ++seen;
  }
  io_uring_cq_advance(&ring_.ring, seen);
  if (seen != 0) refused_since_.reset();
  return got;
}

// Submits what is queued, runs what the kernel deferred, and sleeps until something is done.
UringEngine::Wait UringEngine::wait(Deadline deadline) {
  io_uring_cqe* entry = nullptr;
  __kernel_timespec timeout = {};
  int result = 0;
  if (deadline) {
    const int64_t left = nanoseconds_until(*deadline);
    if (left == 0) {
      // Enters the kernel only for entries not yet submitted, or when the ring's flags tell of deferred work.
      if (io_uring_sq_ready(&ring_.ring) > 0) {
        (void)io_uring_submit_and_get_events(&ring_.ring);
      } else {
        (void)io_uring_peek_cqe(&ring_.ring, &entry);
      }
      return Wait::over;
    }
    timeout = {.tv_sec = left / kNanosecondsPerSecond, .tv_nsec = left % kNanosecondsPerSecond};
  }
  result = io_uring_submit_and_wait_timeout(&ring_.ring, &entry, 1, deadline ? &timeout : nullptr, nullptr);
  if (result >= 0 || result == -ETIME) refused_since_.reset();
  if (result >= 0 || result == -EINTR) return Wait::again;
  if (result == -ETIME) return Wait::over;
  const Clock::time_point now = Clock::now();
  if (!refused_since_) refused_since_ = now;
  if (now - *refused_since_ > kPatience) give_back_unsent(-result);
  wait_for_room(deadline, -result);
  return deadline && nanoseconds_until(*deadline) == 0 ? Wait::over : Wait::again;
}

// What was queued in the ring and never taken by the kernel fails; what it took stays its own.
void UringEngine::give_back_unsent(int errno_value) {
  io_uring_sq& queue = ring_.ring.sq;
  const unsigned head = std::atomic_ref<unsigned>(*queue.khead).load(std::memory_order_acquire);
  for (unsigned i = head; i != queue.sqe_tail; ++i) {
    const uint64_t tag = queue.sqes[i & queue.ring_mask].user_data;
    if (tag == kWakeTag) {
      wake_armed_ = false;
    } else {
      given_back_.push({.cookie = tag, .result = -errno_value});
    }
  }
  // Without a kernel thread that polls the queue nobody else reads the tail.
  queue.sqe_head = queue.sqe_tail = head;
  std::atomic_ref<unsigned>(*queue.ktail).store(head, std::memory_order_release);
}

// The kernel took nothing. When it is short of memory, completions may give some back; anything else is not expected
// after set-up (a seccomp filter installed since?), and must not turn into a busy loop.
void UringEngine::wait_for_room(Deadline deadline, int errno_value) {
  const int64_t ns = deadline ? std::min(nanoseconds_until(*deadline), kBackOffNs) : kBackOffNs;
  if (errno_value == EAGAIN || errno_value == EBUSY) {
    __kernel_timespec timeout = {.tv_sec = 0, .tv_nsec = ns};
    io_uring_cqe* entry = nullptr;
    (void)io_uring_wait_cqes(&ring_.ring, &entry, 1, &timeout, nullptr);
    return;
  }
  const timespec pause = {.tv_sec = 0, .tv_nsec = static_cast<long>(ns)};
  (void)::nanosleep(&pause, nullptr);
}

int UringEngine::register_memory(uint32_t slot, Region region) {
  if (slot >= caps_.memory_slots || region.data == nullptr || region.bytes == 0) return -EINVAL;
  if (region.device.kind != DeviceKind::host) return -EOPNOTSUPP;
  const iovec memory = {.iov_base = region.data, .iov_len = region.bytes};
  const __u64 tag = 0;
  const int result = io_uring_register_buffers_update_tag(&ring_.ring, slot, &memory, &tag, 1);
  return result < 0 ? result : 0;
}

void UringEngine::unregister_memory(uint32_t slot) {
  if (slot >= caps_.memory_slots) return;
  const iovec nothing = {.iov_base = nullptr, .iov_len = 0};
  const __u64 tag = 0;
  (void)io_uring_register_buffers_update_tag(&ring_.ring, slot, &nothing, &tag, 1);
}

}  // namespace

Result<std::unique_ptr<Engine>> make_uring_engine(const EngineOptions& options) {
  auto engine = std::make_unique<UringEngine>();
  if (Status opened = engine->open(clamp_depth(options.depth)); !opened) {
    return std::unexpected(std::move(opened).error());
  }
  return engine;
}

}  // namespace headrace::engine
