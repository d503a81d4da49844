// SPDX-License-Identifier: Apache-2.0
// See the header. The order of one round: mail, fill (take, stage, submit), reap, resolve.
// The worker's thread only.
// Memory given to the engine is a staging slot, or belongs to a transfer that is not done before its bytes are resolved.
#include "transfer/worker_loop.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/align.h"
#include "base/check.h"
#include "base/crc32.h"
#include "memory/stream_copy.h"
#include "os/error.h"
#include "transfer/handle_state.h"
#include "transfer/open_file.h"

namespace headrace::transfer {
namespace {

constexpr uint64_t kSumStepBytes = uint64_t{8}
                                   << 10;  // with its copy, in the first-level cache that two threads may share

const char* name_of(plan::Direction direction) { return direction == plan::Direction::read ? "read" : "write"; }

// The part of [begin, end) that lies in `part`.
struct Piece {
  uint64_t begin, end;
  std::byte* data;
};
Piece piece_of(const Part& part, uint64_t begin, uint64_t end) {
  const uint64_t from = std::max(begin, part.begin);
  return {.begin = from, .end = std::min(end, part.end), .data = part.data + (from - part.begin)};
}

void copy(const Job& job, std::byte* target, const std::byte* source, uint64_t bytes) {
  if (job.past_caches) {
    memory::stream_copy(target, source, bytes);
  } else {
    std::memcpy(target, source, bytes);
  }
}

// Between the piece's memory and `staged`. The sum, where one is wanted, is taken of pieces that the copy finds in the cache.
enum class Into : uint8_t { staging, memory };
void move_piece(const Job& job, const Part& part, const Piece& piece, std::byte* staged, Into into) {
  const bool summing = part.owner->wants_sum() && !job.summed;
  const uint64_t bytes = piece.end - piece.begin;
  const uint64_t step = summing ? kSumStepBytes : bytes;
  uint32_t sum = 0;
  for (uint64_t at = 0; at < bytes; at += step) {
    const uint64_t count = std::min(step, bytes - at);
    std::byte* const target = (into == Into::staging ? staged : piece.data) + at;
    const std::byte* const source = (into == Into::staging ? piece.data : staged) + at;
    if (summing) sum = base::crc32(std::span(source, count), sum);
    copy(job, target, source, count);
  }
  if (summing) part.owner->add_sum(sum, piece.end);
}

}  // namespace

Result<std::unique_ptr<WorkerLoop>> WorkerLoop::create(Worker& worker, HandleState& handle, engine::Engine& engine) {
  std::unique_ptr<WorkerLoop> loop(new WorkerLoop(worker, handle, engine));
  if (loop->options_.registered == Ladder::required && !loop->memory_.possible()) {
    return std::unexpected(Error{.code = ErrorCode::unavailable,
                                 .operation = "create handle",
                                 .detail = "registered=required, but this engine has no registered memory here"});
  }
  const uint64_t slots =
      std::clamp<uint64_t>(loop->options_.staging_bytes / loop->options_.staged_block_bytes, 1, loop->depth_);
  Result<os::Mapping> staging = os::Mapping::create(slots * loop->options_.staged_block_bytes,
                                                    loop->options_.staging_pages, os::ForkPolicy::keep_out_of_children);
  if (!staging) return std::unexpected(std::move(staging).error());
  loop->staging_ = *std::move(staging);
  for (auto slot = static_cast<uint32_t>(slots); slot-- > 0;)
    loop->free_staging_.push_back(slot);
  return loop;
}

WorkerLoop::WorkerLoop(Worker& worker, HandleState& handle, engine::Engine& engine)
    : worker_(worker),
      handle_(handle),
      engine_(engine),
      options_(worker.options_),
      depth_(std::min(options_.depth, engine.caps().depth)),
      memory_(engine, options_.registered),
      table_(depth_),
      completions_(depth_) {
  for (uint32_t i = depth_; i-- > 0;)
    free_entries_.push_back(i);
  ready_.reserve(depth_);
  delayed_.reserve(depth_);
  blocks_.reserve(depth_);
}

void WorkerLoop::run() {
  while (true) {
    read_mail();
    fill();
    const bool idle = free_entries_.size() == depth_;
    if (idle && worker_.stopping_.load(std::memory_order_seq_cst) && handle_.queue().empty()) return;
    sleep_or_reap();
  }
}

void WorkerLoop::read_mail() {
  if (!worker_.mail_.exchange(false, std::memory_order_acquire)) return;
  std::vector<uint64_t> gone;
  {
    const std::lock_guard lock(worker_.mutex_);
    gone.swap(worker_.gone_buffers_);
  }
  for (uint64_t id : gone)
    memory_.forget(id);
  worker_.registered_bytes_.store(memory_.registered_bytes(), std::memory_order_relaxed);
}

bool WorkerLoop::has_room() const {
  return !free_entries_.empty() && !free_staging_.empty() && in_flight_bytes_ < options_.in_flight_bytes_max &&
         delayed_.empty();
}

size_t WorkerLoop::batch() const { return std::max<size_t>(kBatchMin, in_engine_ / 2); }

void WorkerLoop::fill() {
  std::array<QueuedBlock, kTakeMax> taken;
  while (has_room() && !handle_.queue().empty()) {
    const size_t room = std::min({free_entries_.size(), free_staging_.size(), taken.size(), batch()});
    const size_t count = handle_.queue().take(std::span(taken).first(room),
                                              std::min(kTakeBytes, options_.in_flight_bytes_max - in_flight_bytes_));
    if (count == 0) break;
    if (!handle_.queue().empty()) handle_.wake_one();
    for (size_t i = 0; i < count; ++i) {
      const uint32_t index = free_entries_.back();
      free_entries_.pop_back();
      if (prepare(index, std::move(taken[i]))) {
        ready_.push_back(index);
      } else {
        finish(index, table_[index].plan.begin, ErrorCode::unavailable,
               memory_.refusal() != 0 ? -memory_.refusal() : ENOMEM);
      }
    }
    submit_ready();
  }
  submit_ready();
}

bool WorkerLoop::prepare(uint32_t index, QueuedBlock&& block) {
  InFlight& entry = table_[index];
  entry = {.job = std::move(block.job), .plan = block.plan, .part = block.part};
  if (entry.job->datasync) return true;
  entry.position = entry.plan.io_begin;
  in_flight_bytes_ += entry.plan.io_end - entry.plan.io_begin;
  // Another block may have found out meanwhile that direct I/O does not work on this file.
  const bool direct = entry.plan.direct && entry.job->file->direct_descriptor() >= 0;
  entry.path = direct ? engine::Path::direct : engine::Path::buffered;
  if (direct && entry.job->grow_to != 0) entry.job->file->grow_ahead(entry.job->grow_to);
  choose_memory(entry);
  if (direct && entry.memory_slot < 0 && options_.registered == Ladder::required) return false;
  if (entry.plan.staged && entry.job->direction == plan::Direction::write) gather(entry);
  return true;
}

void WorkerLoop::choose_memory(InFlight& entry) {
  const Part& part = entry.job->parts[entry.part];
  const uint64_t bytes = entry.plan.io_end - entry.plan.io_begin;
  uint64_t id = part.buffer_id;
  Region whole = {.data = part.buffer_data, .bytes = part.buffer_bytes, .device = {}};
  if (entry.plan.staged) {
    entry.staging_slot = free_staging_.back();
    free_staging_.pop_back();
    whole = {.data = staging_.data() + entry.staging_slot * options_.staged_block_bytes,
             .bytes = options_.staged_block_bytes,
             .device = {}};
    id = MemorySlots::kStagingIds + entry.staging_slot;
    entry.data = whole.data;
    const uint64_t in_use = (uint64_t{entry.staging_slot} + 1) * options_.staged_block_bytes;
    if (in_use > worker_.staging_bytes_in_use_.load(std::memory_order_relaxed))
      worker_.staging_bytes_in_use_.store(in_use, std::memory_order_relaxed);
  } else {
    entry.data = part.data + (entry.plan.begin - part.begin);
  }
  if (entry.path != engine::Path::direct || id == 0) return;
  if (!memory_.possible()) {
    part.owner->add_reasons(options_.registered == Ladder::never ? kReasonRegisteredNever : kReasonNoRegistration);
    return;
  }
  const uint64_t before = memory_.registered_bytes();
  const int refused_before = memory_.refusal();
  entry.memory_slot = memory_.acquire(id, whole, entry.data, bytes);
  if (memory_.registered_bytes() != before)
    worker_.registered_bytes_.store(memory_.registered_bytes(), std::memory_order_relaxed);
  if (entry.memory_slot < 0 && memory_.refusal() != 0) part.owner->add_reasons(kReasonRegistrationRefused);
  if (memory_.refusal() != refused_before && memory_.refusal() != 0 && options_.registered != Ladder::required) {
    handle_.notice(HandleState::Notice::registration_refused,
                   fmt::format("registering memory with the engine was refused ({}); going on without. The "
                               "locked-memory limit (ulimit -l) may be too small.",
                               errno_name(-memory_.refusal())));
  }
}

void WorkerLoop::gather(const InFlight& entry) {
  for (size_t i = entry.part; i < entry.job->parts.size() && entry.job->parts[i].begin < entry.plan.end; ++i) {
    const Piece piece = piece_of(entry.job->parts[i], entry.plan.begin, entry.plan.end);
    move_piece(*entry.job, entry.job->parts[i], piece, entry.data + (piece.begin - entry.plan.io_begin), Into::staging);
  }
}

void WorkerLoop::scatter(const InFlight& entry, uint64_t good_end) {
  for (size_t i = entry.part; i < entry.job->parts.size() && entry.job->parts[i].begin < good_end; ++i) {
    const Piece piece = piece_of(entry.job->parts[i], entry.plan.begin, good_end);
    move_piece(*entry.job, entry.job->parts[i], piece, entry.data + (piece.begin - entry.plan.io_begin), Into::memory);
  }
}

engine::Block WorkerLoop::block_of(uint32_t index) const {
  const InFlight& entry = table_[index];
  if (entry.job->datasync)
    return {.cookie = index, .operation = engine::Operation::datasync, .descriptor = entry.job->file->descriptor()};
  const bool direct = entry.path == engine::Path::direct;
  return {
      .cookie = index,
      .operation = entry.job->direction == plan::Direction::read ? engine::Operation::read : engine::Operation::write,
      .path = entry.path,
      .descriptor = direct ? entry.job->file->direct_descriptor_even_if_refused() : entry.job->file->descriptor(),
      .memory_slot = entry.memory_slot,
      .offset_bytes = entry.position,
      .data = entry.data + (entry.position - entry.plan.io_begin),
      .length_bytes = static_cast<uint32_t>((direct ? entry.plan.io_end : entry.plan.end) - entry.position)};
}

void WorkerLoop::submit_ready() {
  if (ready_.empty()) return;
  blocks_.clear();
  for (uint32_t index : ready_)
    blocks_.push_back(block_of(index));
  const size_t accepted = engine_.submit(blocks_);
  in_engine_ += static_cast<uint32_t>(accepted);
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(accepted));
}

void WorkerLoop::sleep_or_reap() {
  engine::Deadline deadline;
  if (!delayed_.empty()) deadline = delayed_until_;
  if (!ready_.empty() && in_engine_ == 0) {
    // Full with nothing in flight, it cannot tell when it has room again.
    const Clock::time_point now = Clock::now();
    if (!full_since_) full_since_ = now;
    if (now - *full_since_ > kFullPatience) fail_ready();
    deadline = now + kRetryDelay;
  } else {
    full_since_.reset();
  }
  if (has_room()) {
    worker_.waiting_.store(true, std::memory_order_seq_cst);
    // Whoever queued work before that store may have found nobody waiting.
    if (!handle_.queue().empty() || worker_.mail_.load(std::memory_order_seq_cst)) deadline = Clock::time_point{};
  }
  const size_t count = engine_.reap(completions_, deadline);
  worker_.waiting_.store(false, std::memory_order_seq_cst);
  in_engine_ -= static_cast<uint32_t>(count);
  for (size_t i = 0; i < count;) {
    const size_t end = std::min(count, i + batch());
    for (; i < end; ++i)
      on_completion(completions_[i]);
    if (i < count) fill();
  }
  if (!delayed_.empty() && Clock::now() >= delayed_until_) {
    for (uint32_t index : delayed_)
      send_again(index);
    delayed_.clear();
  }
}

void WorkerLoop::on_completion(const engine::Completion& completion) {
  const auto index = static_cast<uint32_t>(completion.cookie);
  HEADRACE_CHECK(index < depth_ && table_[index].job != nullptr);
  InFlight& entry = table_[index];
  if (completion.result < 0) {
    on_error(index, static_cast<int>(-completion.result));
    return;
  }
  if (entry.job->datasync) {
    finish_sync(entry, 0);
    free_entries_.push_back(index);
    return;
  }
  if (completion.result == 0) {
    if (entry.job->direction == plan::Direction::read) {
      finish(index, std::clamp(entry.position, entry.plan.begin, entry.plan.end), ErrorCode::end_of_file, 0);
    } else if (++entry.immediate_retries > kImmediateRetriesMax) {
      on_error(index, EIO);  // a device that takes nothing, again and again
    } else {
      send_again(index);
    }
    return;
  }
  entry.position += static_cast<uint64_t>(completion.result);
  if (entry.position >= entry.plan.end) {
    if (entry.path == engine::Path::direct) entry.job->file->direct_worked();
    finish(index, entry.plan.end, ErrorCode::system, 0);
    return;
  }
  // Short: at the end of a file, after a signal, on a network, above 2 GiB. What is no longer aligned goes buffered.
  if (entry.path == engine::Path::direct && !base::is_aligned(entry.position, entry.job->file->granule_bytes())) {
    entry.path = engine::Path::buffered;
  }
  send_again(index);
}

void WorkerLoop::on_error(uint32_t index, int errno_value) {
  InFlight& entry = table_[index];
  if (errno_value == EINTR && ++entry.immediate_retries <= kImmediateRetriesMax) {
    send_again(index);
    return;
  }
  if (errno_value == EAGAIN && ++entry.delayed_retries <= kDelayedRetriesMax) {
    if (delayed_.empty()) delayed_until_ = Clock::now() + kRetryDelay;
    delayed_.push_back(index);
    return;
  }
  if (!entry.job->datasync && fall_back(index, errno_value)) return;
  fail(index, errno_value);
}

void WorkerLoop::fail(uint32_t index, int errno_value) {
  InFlight& entry = table_[index];
  if (entry.job->datasync) {
    finish_sync(entry, errno_value);
    free_entries_.push_back(index);
    return;
  }
  finish(index, std::clamp(entry.position, entry.plan.begin, entry.plan.end), ErrorCode::system, errno_value);
}

void WorkerLoop::fail_ready() {
  for (const uint32_t index : std::exchange(ready_, {}))
    fail(index, EAGAIN);
  ready_.reserve(depth_);
  full_since_.reset();
}

bool WorkerLoop::fall_back(uint32_t index, int errno_value) {
  InFlight& entry = table_[index];
  if (entry.memory_slot != engine::kNotRegistered && options_.registered != Ladder::required &&
      (errno_value == EFAULT || errno_value == EOPNOTSUPP || errno_value == EINVAL)) {
    memory_.release(entry.memory_slot);
    entry.memory_slot = engine::kNotRegistered;
    send_again(index);
    return true;
  }
  if (entry.path == engine::Path::direct && handle_.options().direct != Ladder::required &&
      (errno_value == EINVAL || errno_value == EOPNOTSUPP)) {
    OpenFile& file = *entry.job->file;
    if (!file.has_direct_worked()) {
      file.refuse_direct(fmt::format("O_DIRECT was refused at the first transfer ({})", errno_name(errno_value)));
      handle_.notice(
          HandleState::Notice::direct_refused,
          fmt::format("direct I/O on '{}' was refused at the first transfer ({}); going on through the page cache",
                      file.path(), errno_name(errno_value)));
    }
    for (size_t i = entry.part; i < entry.job->parts.size() && entry.job->parts[i].begin < entry.plan.end; ++i) {
      entry.job->parts[i].owner->add_reasons(kReasonDirectRefused);
    }
    entry.path = engine::Path::buffered;
    entry.position = std::clamp(entry.position, entry.plan.begin, entry.plan.end);
    send_again(index);
    return true;
  }
  return false;
}

void WorkerLoop::send_again(uint32_t index) { ready_.push_back(index); }

void WorkerLoop::finish(uint32_t index, uint64_t good_end, ErrorCode code, int errno_value) {
  InFlight& entry = table_[index];
  const std::shared_ptr<Job> job = std::move(entry.job);
  entry.job = job;  // scatter reads it
  if (entry.plan.staged && job->direction == plan::Direction::read) scatter(entry, good_end);
  entry.job.reset();
  const Moved route = {.bytes = 0,
                       .direct = entry.path == engine::Path::direct,
                       .staged = entry.plan.staged,
                       .registered = entry.memory_slot >= 0};
  if (entry.staging_slot != kNoSlot) free_staging_.push_back(entry.staging_slot);
  memory_.release(entry.memory_slot);
  in_flight_bytes_ -= entry.plan.io_end - entry.plan.io_begin;
  const plan::PlannedBlock plan = entry.plan;
  const uint32_t first = entry.part;
  free_entries_.push_back(index);

  // A block that several transfers share fails for one of them only, often: each gets its own answer.
  bool shared = false;
  for (size_t i = first + 1; i < job->parts.size() && job->parts[i].begin < plan.end; ++i)
    shared |= job->parts[i].owner != job->parts[first].owner;
  const bool split = shared && good_end < plan.end && code == ErrorCode::system && !job->single;
  const uint64_t answered_end = split ? good_end : plan.end;

  // Copied out of the loop: a part's owner may be the last to hold the file, not the job, which `job` holds here.
  for (size_t i = first; i < job->parts.size() && job->parts[i].begin < answered_end; ++i) {
    const Part& part = job->parts[i];
    const Piece piece = piece_of(part, plan.begin, answered_end);
    const std::shared_ptr<TransferState> owner = part.owner;
    const uint64_t good = std::clamp(good_end, piece.begin, piece.end) - piece.begin;
    if (good != 0) {
      if (!plan.staged && owner->wants_sum() && !job->summed)
        owner->add_sum(base::crc32(std::span(piece.data, good)), piece.begin + good);
      Moved moved = route;
      moved.bytes = good;
      moved.blocks = i == first ? 1 : 0;
      owner->add_moved(moved);
    }
    uint64_t resolved = piece.end - piece.begin;
    if (good < resolved) {
      owner->fail_at(
          piece.begin + good, code, errno_value, name_of(job->direction),
          code == ErrorCode::unavailable
              ? "registered=required, but the kernel refused to register the memory; raise the locked-memory limit "
                "(ulimit -l), or allow registered=auto"
              : std::string());
      uint64_t first_dropped = 0;
      resolved += owner->drop_unsent(first_dropped);
    }
    owner->resolve(resolved);
  }
  if (split) {
    // What was staged for a write was summed then, all of it.
    const bool summed = job->summed || (plan.staged && job->direction == plan::Direction::write);
    send_parts_alone(*job, first, good_end, plan.end, errno_value, summed);
  }
}

void WorkerLoop::send_parts_alone(const Job& job, uint32_t first_part, uint64_t begin, uint64_t end, int errno_value,
                                  bool summed) {
  std::vector<std::shared_ptr<Job>> alone;
  std::vector<Part> refused;
  for (size_t i = first_part; i < job.parts.size() && job.parts[i].begin < end; ++i) {
    const Part& part = job.parts[i];
    const Piece piece = piece_of(part, begin, end);
    if (piece.begin >= piece.end) continue;
    if (part.owner->failed() || part.owner->aborted()) {  // nothing more of it is sent
      refused.push_back({.owner = part.owner, .begin = piece.begin, .end = piece.end});
      continue;
    }
    auto one = std::make_shared<Job>();
    one->direction = job.direction;
    one->single = true;
    one->past_caches = job.past_caches;
    one->summed = summed;
    one->priority = job.priority;
    one->file = job.file;
    one->direct_wanted = job.direct_wanted;
    // Field by field: `dropped` is the queue's, and another thread may be writing it.
    one->parts.push_back({.owner = part.owner,
                          .begin = piece.begin,
                          .end = piece.end,
                          .data = piece.data,
                          .straight = part.straight,
                          .buffer_id = part.buffer_id,
                          .buffer_data = part.buffer_data,
                          .buffer_bytes = part.buffer_bytes});
    one->position = piece.begin;
    alone.push_back(std::move(one));
  }
  for (size_t i = alone.size(); i-- > 0;)
    handle_.queue().push_front(std::move(alone[i]));
  for (const Part& part : refused) {
    if (part.owner->aborted()) {
      part.owner->fail_at(part.begin, ErrorCode::aborted, 0, name_of(job.direction), "abort() stopped the rest");
    } else {
      part.owner->fail_at(part.begin, ErrorCode::system, errno_value, name_of(job.direction));
    }
    part.owner->resolve(part.end - part.begin);
  }
}

void WorkerLoop::finish_sync(InFlight& entry, int errno_value) {
  const std::shared_ptr<Job> job = std::move(entry.job);
  entry.job.reset();
  std::optional<Error> error;
  if (errno_value != 0) error = os::system_error("datasync", job->file->path(), errno_value);
  std::vector<std::shared_ptr<TransferState>> waiting;
  {
    const std::lock_guard lock(job->sync->mutex);
    waiting.swap(job->sync->waiting);
  }
  for (const std::shared_ptr<TransferState>& state : waiting)
    state->synced(error);
}

}  // namespace headrace::transfer
