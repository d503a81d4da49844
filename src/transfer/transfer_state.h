// SPDX-License-Identifier: Apache-2.0
// The shared state of one request, from submission to result.
// Any thread. Workers report byte ranges; the last one to report finishes it.
// Owned by Transfers and by the parts of jobs. It holds its file, buffers and handle only until it is done.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <headrace/request.h>
#include <headrace/transfer.h>

#include "os/process_id.h"
#include "plan/block_plan.h"

namespace headrace::memory {
class BufferStorage;
}

namespace headrace::transfer {

class HandleState;
class OpenFile;
class TransferState;
struct Job;
struct SyncGroup;

// Why the bytes did not take the fastest route; bits of a set.
enum Reason : uint32_t {
  kReasonSmallPages = 1U << 0,
  kReasonMisaligned = 1U << 1,
  kReasonCopyAlways = 1U << 2,
  kReasonCopyNever = 1U << 3,
  kReasonRaggedEdge = 1U << 4,
  kReasonPageCache = 1U << 5,
  kReasonCacheUse = 1U << 6,
  kReasonDirectNever = 1U << 7,
  kReasonDirectRefused = 1U << 8,
  kReasonInMemory = 1U << 9,
  kReasonRegisteredNever = 1U << 10,
  kReasonRegistrationRefused = 1U << 11,
  kReasonNoRegistration = 1U << 12,
  kReasonHelperThreads = 1U << 13,
  kReasonDevice = 1U << 14,
};

// Counts transfers as they finish, for wait(). Whoever waits is woken once, by the transfer that fulfils the condition: a
// wake-up for each of thousands would cost more than the transfers.
struct Observer {
  std::atomic<uint32_t> fulfilled = 0;        // futex word
  std::atomic<uint64_t> done = 0;             // finished while observed
  std::atomic<uint64_t> enough = UINT64_MAX;  // how many fulfil the condition; set once all are observed
  const bool failure_is_enough;
  std::atomic<bool> failed = false;  // a cancelled transfer did not fail

  explicit Observer(bool failure_is_enough_in) : failure_is_enough(failure_is_enough_in) {}

  [[nodiscard]] bool satisfied() const noexcept {
    // Sequentially consistent with the counting below: one of the two sides sees what the other stored.
    return done.load(std::memory_order_seq_cst) >= enough.load(std::memory_order_seq_cst) ||
           (failure_is_enough && failed.load(std::memory_order_seq_cst));
  }
  void count(bool failure) noexcept;
};

// Where the payload of one finished piece of a block went.
struct Moved {
  uint64_t bytes = 0;
  uint32_t blocks = 0;  // 1 for the first piece of a block, so that the sum over all transfers counts blocks
  bool direct = false;
  bool staged = false;
  bool registered = false;
};

class TransferState : public std::enable_shared_from_this<TransferState> {
 public:
  using Clock = std::chrono::steady_clock;

  struct Setup {
    plan::Direction direction = plan::Direction::read;
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;
    EndOfFile end_of_file = EndOfFile::is_an_error;
    Checksum checksum = Checksum::none;
    PageKind pages = PageKind::unknown;
    uint32_t reasons = 0;
    std::shared_ptr<OpenFile> file;
    std::shared_ptr<HandleState> handle;
    std::vector<std::shared_ptr<memory::BufferStorage>> buffers;
    std::shared_ptr<SyncGroup> sync;
    std::unique_ptr<AtomicFile> atomic_file;  // committed once every byte is written
  };
  explicit TransferState(Setup setup);

  // --- for the queue and the workers ---
  void attach(const std::shared_ptr<Job>& job) { job_ = job; }
  // With the queue's lock held, before the first block is sent.
  void mark_started() noexcept { phase_.fetch_or(kStarted, std::memory_order_relaxed); }
  void add_reasons(uint32_t reasons) noexcept { reasons_.fetch_or(reasons, std::memory_order_relaxed); }
  void add_moved(const Moved& moved) noexcept;
  [[nodiscard]] bool wants_sum() const noexcept { return setup_.checksum != Checksum::none; }
  // `sum` is that of a piece of the request that ends at file offset `end`. Each byte is summed once.
  void add_sum(uint32_t sum, uint64_t end) noexcept;
  // The byte at `offset` could not be moved. The lowest offset wins.
  void fail_at(uint64_t offset, ErrorCode code, int errno_value, const char* operation, std::string detail = {});
  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  [[nodiscard]] bool aborted() const noexcept { return (phase_.load(std::memory_order_acquire) & kAborted) != 0; }
  // Nothing more of it is sent. The bytes that will not be, still to be resolved, and the first of them in `first`.
  [[nodiscard]] uint64_t drop_unsent(uint64_t& first);
  // `bytes` more are accounted for, moved or not. The last call finishes the transfer.
  void resolve(uint64_t bytes);
  // Called once, instead of resolve(), for a request of zero bytes.
  void resolve_empty() { all_resolved(); }
  // The durable part is over: the group's datasync or the commit.
  void synced(const std::optional<Error>& error);
  [[nodiscard]] uint64_t offset_bytes() const noexcept { return setup_.offset_bytes; }
  [[nodiscard]] plan::Direction direction() const noexcept { return setup_.direction; }

  // --- for Transfer ---
  [[nodiscard]] bool done() const noexcept { return (phase_.load(std::memory_order_acquire) & kDone) != 0; }
  [[nodiscard]] bool started() const noexcept { return (phase_.load(std::memory_order_acquire) & kStarted) != 0; }
  [[nodiscard]] bool cancelled() const noexcept { return (phase_.load(std::memory_order_acquire) & kCancelled) != 0; }
  // In a child made by fork an unfinished transfer never finishes: it belongs to the parent.
  [[nodiscard]] bool orphaned() const noexcept { return !done() && process_ != os::process_id(); }
  // False when the time is over first. `interruptible`: also false when a signal arrived.
  [[nodiscard]] bool wait(std::optional<Clock::time_point> deadline, bool interruptible) noexcept;
  [[nodiscard]] Result<uint64_t> take_result();
  [[nodiscard]] Result<uint64_t> peek_result() const;
  [[nodiscard]] bool collected() const noexcept { return collected_.load(std::memory_order_acquire); }
  [[nodiscard]] Error closed_error(const char* detail) const;
  [[nodiscard]] bool cancel();
  void abort();
  [[nodiscard]] std::optional<Route> route() const;
  [[nodiscard]] std::optional<uint32_t> crc32() const;
  void on_done(std::function<void()> callback);
  void keep_alive(std::shared_ptr<void> owner);
  // False when the transfer is done already; the observer then hears nothing of it.
  [[nodiscard]] bool observe(const std::shared_ptr<Observer>& observer);
  void stop_observing(const Observer* observer);

 private:
  static constexpr uint32_t kStarted = 1, kCancelled = 2, kDone = 4, kWaitedFor = 8, kAborted = 16;

  void all_resolved();
  void finish();
  // Null when done.
  [[nodiscard]] std::shared_ptr<HandleState> handle() const;
  [[nodiscard]] std::shared_ptr<OpenFile> file() const;

  Setup setup_;
  const pid_t process_ = os::process_id();
  const Clock::time_point submitted_at_ = Clock::now();
  std::weak_ptr<Job> job_;
  std::atomic<uint64_t> unresolved_bytes_;
  std::atomic<uint32_t> phase_ = 0;  // futex word; kDone is set last, with release
  std::atomic<uint32_t> reasons_;
  std::atomic<uint64_t> direct_bytes_ = 0, buffered_bytes_ = 0, staged_bytes_ = 0, registered_bytes_ = 0;
  std::atomic<uint64_t> blocks_ = 0;
  std::atomic<uint32_t> sum_ = 0;  // contributions of the pieces moved so far
  std::atomic<bool> failed_ = false;
  std::atomic<bool> collected_ = false;

  mutable std::mutex mutex_;  // guards what follows, until done; result_ and route_ are read-only after
  uint64_t failed_at_bytes_ = UINT64_MAX;
  Error error_;
  Result<uint64_t> result_ = 0;
  Route route_;
  std::vector<std::function<void()>> callbacks_;
  std::vector<std::shared_ptr<void>> owners_;
  std::vector<std::shared_ptr<Observer>> observers_;
};

// The durable writes of one submission into one file: a single datasync after the last of them.
struct SyncGroup {
  std::shared_ptr<OpenFile> file;
  std::shared_ptr<HandleState> handle;
  std::atomic<uint32_t> unwritten = 0;  // members with bytes on their way
  int priority = kPriorityMin;          // the highest of its members
  std::mutex mutex;
  std::vector<std::shared_ptr<TransferState>> waiting;  // written well; guarded by mutex
};

}  // namespace headrace::transfer
