// SPDX-License-Identifier: Apache-2.0
// Accounting of bytes, the lowest failure, the durable step, and the one place where a transfer becomes done.
// Any thread.
// See the header for ownership.
#include "transfer/transfer_state.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/crc32.h"
#include "os/error.h"
#include "os/futex.h"
#include "transfer/handle_state.h"
#include "transfer/open_file.h"
#include "transfer/task_thread.h"

namespace headrace::transfer {
namespace {

struct ReasonText {
  uint32_t reason;
  const char* text;
};
constexpr ReasonText kReasonTexts[] = {
    {kReasonSmallPages, "staged: the memory is not known to sit on huge pages (use headrace::Buffer)"},
    {kReasonMisaligned, "staged: memory and file offset do not agree modulo the direct-I/O alignment"},
    {kReasonCopyAlways, "staged: copy=always"},
    {kReasonCopyNever, "buffered where memory and file offset do not agree: copy=never"},
    {kReasonRaggedEdge, "ragged edges of a write go by the page cache"},
    {kReasonPageCache, "buffered: half or more of the range was in the page cache"},
    {kReasonCacheUse, "buffered: cache=use"},
    {kReasonDirectNever, "buffered: direct=never"},
    {kReasonInMemory, "buffered: the file system lives in memory"},
    {kReasonDevice, "buffered: not a regular file or block device"},
    {kReasonRegisteredNever, "not registered: registered=never"},
    {kReasonRegistrationRefused, "not registered: the kernel refused (locked-memory limit, ulimit -l)"},
    {kReasonNoRegistration, "not registered: the engine has no registered memory"},
    {kReasonHelperThreads, "buffered parts by pread and pwrite on helper threads"},
};

// `at_bytes`: where the file gave nothing more.
std::string end_of_file_detail(OpenFile& file, uint64_t at_bytes) {
  std::string end = fmt::format("the file ended at offset {}", at_bytes);
  if (file.has_length()) {
    const Result<uint64_t> size = file.system().size_bytes(file.descriptor(), file.path());
    // One that is longer by now has grown since.
    if (size && *size <= at_bytes) end = fmt::format("the file has {} bytes", *size);
  }
  return end + "; read less, or take what there is with partial=True (C++: EndOfFile::is_a_count)";
}

}  // namespace

void Observer::count(bool failure) noexcept {
  if (failure) failed.store(true, std::memory_order_seq_cst);
  done.fetch_add(1, std::memory_order_seq_cst);
  if (satisfied() && fulfilled.exchange(1, std::memory_order_acq_rel) == 0) os::futex_wake_all(fulfilled);
}

TransferState::TransferState(Setup setup)
    : setup_(std::move(setup)), unresolved_bytes_(setup_.length_bytes), reasons_(setup_.reasons) {}

void TransferState::add_moved(const Moved& moved) noexcept {
  (moved.direct ? direct_bytes_ : buffered_bytes_).fetch_add(moved.bytes, std::memory_order_relaxed);
  if (moved.staged) staged_bytes_.fetch_add(moved.bytes, std::memory_order_relaxed);
  if (moved.registered) registered_bytes_.fetch_add(moved.bytes, std::memory_order_relaxed);
  blocks_.fetch_add(moved.blocks, std::memory_order_relaxed);
}

void TransferState::fail_at(uint64_t offset, ErrorCode code, int errno_value, const char* operation,
                            std::string detail) {
  const std::lock_guard lock(mutex_);
  if (offset < failed_at_bytes_) {
    failed_at_bytes_ = offset;
    error_.code = code;
    error_.errno_value = errno_value;
    error_.operation = operation;
    error_.detail = detail.empty() ? std::string(os::remedy(errno_value)) : std::move(detail);
  }
  failed_.store(true, std::memory_order_release);
}

void TransferState::add_sum(uint32_t sum, uint64_t end) noexcept {
  const uint64_t behind = setup_.offset_bytes + setup_.length_bytes - end;
  sum_.fetch_xor(base::crc32_contribution(sum, behind), std::memory_order_relaxed);  // published by resolve()
}

void TransferState::resolve(uint64_t bytes) {
  if (unresolved_bytes_.fetch_sub(bytes, std::memory_order_acq_rel) == bytes) all_resolved();
}

void TransferState::all_resolved() {
  const std::shared_ptr<TransferState> self = shared_from_this();
  if (const std::shared_ptr<SyncGroup> group = setup_.sync) {
    const bool good = !failed() && !cancelled();
    if (good) {
      const std::lock_guard lock(group->mutex);
      group->waiting.push_back(self);
    }
    const bool last = group->unwritten.fetch_sub(1, std::memory_order_acq_rel) == 1;
    if (!good) finish();
    if (last) HandleState::sync(group);
    return;
  }
  if (setup_.atomic_file != nullptr && !failed() && !cancelled()) {
    committer().post([self] {
      const Status committed = self->setup_.atomic_file->commit();
      self->synced(committed ? std::nullopt : std::optional<Error>(committed.error()));
    });
    return;
  }
  finish();
}

void TransferState::synced(const std::optional<Error>& error) {
  if (error) {
    fail_at(setup_.offset_bytes, error->code, error->errno_value, error->operation.c_str(), error->detail);
  }
  finish();
}

void TransferState::finish() {
  const std::shared_ptr<TransferState> self = shared_from_this();
  std::shared_ptr<HandleState> handle;
  std::vector<std::function<void()>> callbacks;
  std::vector<std::shared_ptr<void>> owners;
  std::vector<std::shared_ptr<Observer>> observers;
  bool failed = false;
  bool waited_for = false;
  {
    const std::lock_guard lock(mutex_);
    handle = std::move(setup_.handle);
    uint64_t moved = setup_.length_bytes;
    if (failed_at_bytes_ != UINT64_MAX) moved = failed_at_bytes_ - setup_.offset_bytes;
    const bool counted_end = error_.code == ErrorCode::end_of_file && setup_.end_of_file == EndOfFile::is_a_count;
    failed = cancelled() || (failed_.load(std::memory_order_relaxed) && !counted_end);
    if (failed) {
      if (cancelled()) {
        error_.code = ErrorCode::cancelled;
        error_.operation = setup_.direction == plan::Direction::read ? "read" : "write";
        moved = 0;
      }
      if (error_.code == ErrorCode::end_of_file) error_.detail = end_of_file_detail(*setup_.file, failed_at_bytes_);
      error_.path = setup_.file->path();
      error_.offset_bytes = setup_.offset_bytes;
      error_.length_bytes = setup_.length_bytes;
      error_.transferred_bytes = moved;
      result_ = std::unexpected(error_);
    } else {
      result_ = moved;
    }
    route_.engine = handle->facts().engine;
    route_.direct_bytes = direct_bytes_.load(std::memory_order_relaxed);
    route_.buffered_bytes = buffered_bytes_.load(std::memory_order_relaxed);
    route_.staged_bytes = staged_bytes_.load(std::memory_order_relaxed);
    route_.registered_bytes = registered_bytes_.load(std::memory_order_relaxed);
    route_.pages = setup_.pages;
    if ((reasons_.load(std::memory_order_relaxed) & kReasonDirectRefused) != 0) {
      const std::string refusal = setup_.file->direct_refusal();  // empty when only some block was refused
      route_.why = "buffered: " + (refusal.empty() ? "O_DIRECT was refused for part of this range" : refusal);
    }
    if (setup_.direction == plan::Direction::write) {
      if (moved != 0) {
        setup_.file->wrote(setup_.offset_bytes + moved,
                           failed ? OpenFile::Written::prefix_of_request : OpenFile::Written::whole_request);
      }
      const uint64_t end = setup_.offset_bytes + setup_.length_bytes;
      if (cancelled()) {
        setup_.file->write_cancelled(setup_.offset_bytes, end);
      } else if (failed) {
        setup_.file->write_failed(setup_.offset_bytes, setup_.offset_bytes + moved, end);
      }
    }
    handle->count_finished({.direction = setup_.direction,
                            .failed = failed && !cancelled(),
                            .errno_value = failed ? error_.errno_value : 0,
                            .bytes = moved,
                            .blocks = blocks_.load(std::memory_order_relaxed),
                            .route = route_,
                            .latency = Clock::now() - submitted_at_});
  }
  // Files close and atomic files are discarded before anybody can see that the transfer is done.
  std::shared_ptr<OpenFile> file;
  {
    const std::lock_guard lock(mutex_);
    file.swap(setup_.file);
  }
  file.reset();
  setup_.atomic_file.reset();
  setup_.buffers.clear();
  setup_.sync.reset();
  if (failed && setup_.direction == plan::Direction::write && !cancelled() && error_.code != ErrorCode::aborted &&
      error_.code != ErrorCode::interrupted)
    handle->remember_failed_write(self);
  handle->free_place();
  {
    const std::lock_guard lock(mutex_);
    callbacks = std::move(callbacks_);
    owners = std::move(owners_);
    observers = std::move(observers_);
    waited_for = (phase_.fetch_or(kDone, std::memory_order_acq_rel) & kWaitedFor) != 0;
  }
  if (waited_for) os::futex_wake_all(phase_);
  for (const std::shared_ptr<Observer>& observer : observers) {
    observer->count(failed && !cancelled());
  }
  if (!callbacks.empty() || !owners.empty()) {
    dispatcher().post([callbacks = std::move(callbacks), owners = std::move(owners)]() mutable {
      for (std::function<void()>& callback : callbacks)
        callback();
      callbacks.clear();
      owners.clear();
    });
  }
  handle->request_done();
}

bool TransferState::wait(std::optional<Clock::time_point> deadline, bool interruptible) noexcept {
  while (true) {
    if (done()) return true;
    if (process_ != os::process_id()) return false;
    std::optional<std::chrono::nanoseconds> timeout;
    if (deadline) {
      timeout = *deadline - Clock::now();
      if (timeout->count() <= 0) return false;
    }
    const uint32_t phase = phase_.fetch_or(kWaitedFor, std::memory_order_acq_rel) | kWaitedFor;
    if ((phase & kDone) != 0) return true;
    const bool interrupted = os::futex_wait(phase_, phase, timeout);
    if (interrupted && interruptible) return done();
  }
}

Result<uint64_t> TransferState::take_result() {
  collected_.store(true, std::memory_order_release);
  return peek_result();
}

Result<uint64_t> TransferState::peek_result() const { return result_; }

Error TransferState::closed_error(const char* detail) const {
  // Not under the lock: in a child made by fork it may be held for ever, and there nothing changes `file` any more.
  const std::shared_ptr<OpenFile> file = orphaned() ? nullptr : this->file();
  return {.code = ErrorCode::closed,
          .operation = setup_.direction == plan::Direction::read ? "read" : "write",
          .path = file ? file->path() : std::string(),
          .offset_bytes = setup_.offset_bytes,
          .length_bytes = setup_.length_bytes,
          .detail = detail};
}

std::shared_ptr<HandleState> TransferState::handle() const {
  const std::lock_guard lock(mutex_);
  return setup_.handle;
}

std::shared_ptr<OpenFile> TransferState::file() const {
  const std::lock_guard lock(mutex_);
  return setup_.file;
}

uint64_t TransferState::drop_unsent(uint64_t& first) {
  const std::shared_ptr<Job> job = job_.lock();
  const std::shared_ptr<HandleState> holder = handle();
  if (job == nullptr || holder == nullptr) return 0;
  return holder->queue().drop(*job, *this, first);
}

bool TransferState::cancel() {
  if (done() || process_ != os::process_id()) return cancelled();
  const std::shared_ptr<TransferState> self = shared_from_this();
  const std::shared_ptr<Job> job = job_.lock();
  const std::shared_ptr<HandleState> holder = handle();
  if (job == nullptr || holder == nullptr || !holder->queue().drop_unless_started(*job, *this)) return false;
  phase_.fetch_or(kCancelled, std::memory_order_relaxed);
  resolve(setup_.length_bytes);
  return true;
}

void TransferState::abort() {
  if (done() || process_ != os::process_id()) return;
  const std::shared_ptr<TransferState> self = shared_from_this();
  phase_.fetch_or(kAborted, std::memory_order_acq_rel);
  uint64_t first = 0;
  const uint64_t dropped = drop_unsent(first);
  if (dropped == 0) return;
  fail_at(first, ErrorCode::aborted, 0, setup_.direction == plan::Direction::read ? "read" : "write",
          "abort() stopped the rest");
  collected_.store(true, std::memory_order_release);  // whoever aborts knows
  resolve(dropped);
}

std::optional<Route> TransferState::route() const {
  if (!done()) return std::nullopt;
  Route route = route_;
  uint32_t reasons = reasons_.load(std::memory_order_relaxed);
  if (route.engine == EngineKind::aio && route.buffered_bytes != 0) reasons |= kReasonHelperThreads;
  for (const ReasonText& entry : kReasonTexts) {
    if ((reasons & entry.reason) == 0) continue;
    if (!route.why.empty()) route.why += "; ";
    route.why += entry.text;
  }
  return route;
}

std::optional<uint32_t> TransferState::crc32() const {
  if (!done() || !wants_sum() || !result_ || *result_ != setup_.length_bytes) return std::nullopt;
  return sum_.load(std::memory_order_relaxed);
}

void TransferState::on_done(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if ((phase_.load(std::memory_order_relaxed) & kDone) == 0) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  dispatcher().post(std::move(callback));
}

void TransferState::keep_alive(std::shared_ptr<void> owner) {
  const std::lock_guard lock(mutex_);
  if ((phase_.load(std::memory_order_relaxed) & kDone) == 0) owners_.push_back(std::move(owner));
}

bool TransferState::observe(const std::shared_ptr<Observer>& observer) {
  const std::lock_guard lock(mutex_);
  if ((phase_.load(std::memory_order_relaxed) & kDone) != 0) return false;
  observers_.push_back(observer);
  return true;
}

void TransferState::stop_observing(const Observer* observer) {
  const std::lock_guard lock(mutex_);
  std::erase_if(observers_, [&](const auto& entry) { return entry.get() == observer; });
}

}  // namespace headrace::transfer
