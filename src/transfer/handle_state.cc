// SPDX-License-Identifier: Apache-2.0
// Life of a handle: settings, the engine ladder, closing, limits and counters. Submission is in submit.cc.
// Any thread.
// See the header for ownership.
#include "transfer/handle_state.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/units.h"
#include "transfer/log.h"
#include "transfer/worker.h"

namespace headrace::transfer {
namespace {

constexpr uint32_t kWorkersDefaultMax = 4;
constexpr uint32_t kDepthDefault = 32;
constexpr uint64_t kBlockBytesDefault = 4 * base::kMiB;
constexpr uint64_t kStagedBlockBytesMax = 2 * base::kMiB;  // a huge page; larger ones let the disk wait longer
constexpr uint64_t kStagingBytesDefault = 256 * base::kMiB;
constexpr uint64_t kInFlightBytes = 128 * base::kMiB;  // of all workers; more only adds latency
constexpr size_t kFailedWritesMax = 1024;              // remembered for close()

uint32_t processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

std::unexpected<Error> invalid(std::string detail) {
  return std::unexpected(
      Error{.code = ErrorCode::invalid_argument, .operation = "create handle", .detail = std::move(detail)});
}

// Every option filled in, or what is wrong with one of them.
Result<HandleFacts> settle(const HandleOptions& options) {
  HandleFacts facts;
  facts.workers = options.workers != 0 ? options.workers : std::min(processors(), kWorkersDefaultMax);
  if (facts.workers > kWorkersMax)
    return invalid(fmt::format("workers is {}; allowed: 1 to {}", facts.workers, kWorkersMax));
  facts.queue_depth = options.queue_depth != 0 ? options.queue_depth : kDepthDefault;
  if (facts.queue_depth > kQueueDepthMax)
    return invalid(fmt::format("queue_depth is {}; allowed: 1 to {}", facts.queue_depth, kQueueDepthMax));
  facts.block_bytes = options.block_bytes != 0 ? options.block_bytes : kBlockBytesDefault;
  if (facts.block_bytes < kBlockBytesMin || facts.block_bytes > kBlockBytesMax ||
      facts.block_bytes % kBlockBytesMin != 0) {
    return invalid(fmt::format("block_bytes is {}; allowed: multiples of {} from {} to {}", facts.block_bytes,
                               kBlockBytesMin, kBlockBytesMin, kBlockBytesMax));
  }
  if (options.requests_max == 0) return invalid(fmt::format("requests_max is 0; allowed: 1 to {}", UINT32_MAX));
  facts.requests_max = options.requests_max;
  facts.staged_block_bytes = std::min(facts.block_bytes, kStagedBlockBytesMax);
  const uint64_t staging_max = options.staging_bytes != 0 ? options.staging_bytes : kStagingBytesDefault;
  if (staging_max < facts.workers * kBlockBytesMin) {
    return invalid(fmt::format("staging_bytes is {}; allowed: {} or more with {} workers", staging_max,
                               facts.workers * kBlockBytesMin, facts.workers));
  }
  // A small staging limit makes the slots smaller before it makes them few.
  while (facts.staged_block_bytes > kBlockBytesMin && facts.staged_block_bytes * 4 * facts.workers > staging_max) {
    facts.staged_block_bytes = facts.staged_block_bytes / 2 / kBlockBytesMin * kBlockBytesMin;
  }
  facts.staged_block_bytes = std::max(facts.staged_block_bytes, kBlockBytesMin);
  const uint64_t slots =
      std::clamp<uint64_t>(staging_max / facts.workers / facts.staged_block_bytes, 1, facts.queue_depth);
  facts.staging_bytes = slots * facts.staged_block_bytes * facts.workers;
  return facts;
}

}  // namespace

Result<std::shared_ptr<HandleState>> HandleState::create(const HandleOptions& options,
                                                         std::span<const EngineCandidate> candidates) {
  const Result<HandleFacts> settled = settle(options);
  if (!settled) return std::unexpected(settled.error());
  auto handle = std::make_shared<HandleState>(
      options, BlockSizes{.block_bytes = settled->block_bytes, .staged_block_bytes = settled->staged_block_bytes});
  handle->facts_ = *settled;
  const WorkerOptions worker_options = {
      .depth = settled->queue_depth,
      .staged_block_bytes = settled->staged_block_bytes,
      .staging_bytes = settled->staging_bytes / settled->workers,
      .in_flight_bytes_max = std::max(kInFlightBytes / settled->workers, settled->block_bytes),
      .staging_pages = options.staging_pages,
      .registered = options.registered};
  std::string passed_over;
  Error first_error;
  for (const EngineCandidate& candidate : candidates) {
    handle->facts_.engine = candidate.kind;
    Error refusal;
    for (uint32_t i = 0; i < settled->workers; ++i) {
      auto worker = std::make_unique<Worker>(worker_options);
      Result<engine::Caps> caps = worker->start(handle, candidate.factory);
      if (!caps) {
        worker->join();
        refusal = std::move(caps).error();
        break;
      }
      if (i == 0) handle->facts_.engine_detail = caps->detail;
      handle->facts_.queue_depth = std::min(handle->facts_.queue_depth, caps->depth);
      handle->workers_.push_back(std::move(worker));
    }
    // Fewer workers than asked for, because a limit of the system was reached on the way, still move everything.
    if (!handle->workers_.empty()) {
      if (handle->workers_.size() < settled->workers) {
        log(LogLevel::warning,
            fmt::format("{} of {} workers started: {}", handle->workers_.size(), settled->workers, refusal.message()));
        handle->facts_.workers = static_cast<uint32_t>(handle->workers_.size());
      }
      if (!passed_over.empty()) {
        handle->facts_.engine_detail += (handle->facts_.engine_detail.empty() ? "" : "; ") + passed_over;
        log(LogLevel::warning, fmt::format("engine '{}' is used: {}", engine_name(candidate.kind), passed_over));
      }
      return handle;
    }
    passed_over += fmt::format("{}{} is not available ({})", passed_over.empty() ? "" : "; ",
                               engine_name(candidate.kind), refusal.message());
    if (first_error.operation.empty()) first_error = std::move(refusal);
  }
  if (candidates.size() > 1) first_error.detail = passed_over;
  return std::unexpected(std::move(first_error));
}

HandleState::HandleState(const HandleOptions& options, BlockSizes sizes) : options_(options), queue_(sizes) {}

HandleState::~HandleState() = default;

Status HandleState::close(std::optional<Clock::time_point> deadline) {
  if (!in_own_process()) return {};  // the parent's handle: nothing here to close
  closing_.store(true, std::memory_order_release);
  {
    std::unique_lock lock(mutex_);
    ++waiters_;
    changed_.notify_all();  // submitters that wait for room give up
    const auto idle = [this] { return unfinished_ == 0; };
    const bool finished = deadline ? changed_.wait_until(lock, *deadline, idle) : (changed_.wait(lock, idle), true);
    --waiters_;
    if (!finished) {
      return std::unexpected(Error{.code = ErrorCode::timed_out,
                                   .operation = "close",
                                   .detail = fmt::format("{} requests are unfinished: the device does not answer. "
                                                         "Their memory stays alive; close again to wait longer",
                                                         unfinished_)});
    }
  }
  while (const uint32_t finishing = finishing_.load(std::memory_order_acquire))
    finishing_.wait(finishing);
  {
    const std::lock_guard lock(close_mutex_);
    for (const std::unique_ptr<Worker>& worker : workers_)
      worker->stop();
    for (const std::unique_ptr<Worker>& worker : workers_)
      worker->join();
  }
  const std::lock_guard lock(mutex_);
  Status status;
  for (const std::shared_ptr<TransferState>& state : std::exchange(failed_writes_, {})) {
    if (status && !state->collected()) status = std::unexpected(state->take_result().error());
  }
  return status;
}

void HandleState::detach() {
  const std::lock_guard lock(close_mutex_);
  for (const std::unique_ptr<Worker>& worker : workers_) {
    worker->stop();
    worker->detach();
  }
}

void HandleState::abort_reads() {
  for (const std::shared_ptr<TransferState>& state : queue_.waiting(plan::Direction::read))
    state->abort();
}

void HandleState::enqueue(std::shared_ptr<Job> job) {
  queue_.push(std::move(job));
  wake_one();
}

void HandleState::wake_one() noexcept {
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker->wake_if_waiting()) return;
  }
}

void HandleState::sync(const std::shared_ptr<SyncGroup>& group) {
  {
    const std::lock_guard lock(group->mutex);
    if (group->waiting.empty()) return;
  }
  auto job = std::make_shared<Job>();
  job->direction = plan::Direction::write;
  job->datasync = true;
  job->priority = group->priority;
  job->file = group->file.get();
  job->sync = group;
  const std::shared_ptr<HandleState> handle = group->handle;
  handle->enqueue(std::move(job));
}

void HandleState::count_finished(const Finished& finished) noexcept {
  Counters& counters = counters_[static_cast<size_t>(finished.direction)];
  const auto add = [](std::atomic<uint64_t>& counter, uint64_t value) {
    if (value != 0) counter.fetch_add(value, std::memory_order_relaxed);
  };
  add(counters.requests, 1);
  add(counters.failed, finished.failed ? 1 : 0);
  add(counters.bytes, finished.bytes);
  add(counters.blocks, finished.blocks);
  add(counters.direct, finished.route.direct_bytes);
  add(counters.buffered, finished.route.buffered_bytes);
  add(counters.staged, finished.route.staged_bytes);
  add(counters.registered, finished.route.registered_bytes);
  counters.latency.record(static_cast<uint64_t>(std::max<int64_t>(0, finished.latency.count())));
  if (finished.failed) {
    const std::lock_guard lock(mutex_);
    ++errors_by_errno_[finished.errno_value];
  }
}

void HandleState::remember_failed_write(const std::shared_ptr<TransferState>& state) {
  const std::lock_guard lock(mutex_);
  if (failed_writes_.size() >= kFailedWritesMax) {
    std::erase_if(failed_writes_, [](const auto& entry) { return entry->collected(); });
  }
  // The first failures say most; what comes after so many uncollected ones is counted in stats() only.
  if (failed_writes_.size() < kFailedWritesMax) failed_writes_.push_back(state);
}

void HandleState::free_place() noexcept {
  finishing_.fetch_add(1, std::memory_order_relaxed);  // close() sees it: mutex_ follows
  const std::lock_guard lock(mutex_);
  --unfinished_;
  if (waiters_ != 0) changed_.notify_all();
}

void HandleState::request_done() noexcept {
  finishing_.fetch_sub(1, std::memory_order_release);
  finishing_.notify_all();
}

void HandleState::notice(Notice kind, const std::string& text) {
  const auto bit = static_cast<uint32_t>(kind);
  if ((noticed_.fetch_or(bit, std::memory_order_relaxed) & bit) == 0) log(LogLevel::info, text);
}

void HandleState::buffer_gone(uint64_t buffer_id) noexcept {
  if (!in_own_process()) return;
  for (const std::unique_ptr<Worker>& worker : workers_)
    worker->buffer_gone(buffer_id);
}

std::array<base::LatencyHistogram::Counts, 2> HandleState::latencies() const noexcept {
  std::array<base::LatencyHistogram::Counts, 2> counts = {};
  for (size_t i = 0; i < counts.size(); ++i)
    counters_[i].latency.add_to(counts[i]);
  return counts;
}

HandleStats HandleState::stats() const {
  HandleStats stats;
  for (plan::Direction direction : {plan::Direction::read, plan::Direction::write}) {
    const Counters& counters = counters_[static_cast<size_t>(direction)];
    DirectionStats& out = direction == plan::Direction::read ? stats.reads : stats.writes;
    out.requests = counters.requests.load(std::memory_order_relaxed);
    out.failed = counters.failed.load(std::memory_order_relaxed);
    out.bytes = counters.bytes.load(std::memory_order_relaxed);
    out.blocks = counters.blocks.load(std::memory_order_relaxed);
    out.direct_bytes = counters.direct.load(std::memory_order_relaxed);
    out.buffered_bytes = counters.buffered.load(std::memory_order_relaxed);
    out.staged_bytes = counters.staged.load(std::memory_order_relaxed);
    out.registered_bytes = counters.registered.load(std::memory_order_relaxed);
    base::LatencyHistogram::Counts counts = {};
    counters.latency.add_to(counts);
    constexpr std::array<uint64_t, 5> kPerMille = {500, 900, 990, 999, 1000};
    for (size_t i = 0; i < kPerMille.size(); ++i)
      out.latency_ns[i] = base::LatencyHistogram::percentile(counts, kPerMille[i]);
  }
  const std::lock_guard lock(mutex_);
  stats.errors_by_errno = errors_by_errno_;
  stats.unfinished_requests = unfinished_;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    stats.staging_bytes_in_use += worker->staging_bytes_in_use();
    stats.memory_registered_bytes += worker->registered_bytes();
  }
  return stats;
}

}  // namespace headrace::transfer
