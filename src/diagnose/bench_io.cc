// SPDX-License-Identifier: Apache-2.0
// One setting measured: what is made ready before, what is timed, what is checked after.
// One thread at a time.
// See the header for ownership.
#include "diagnose/bench_io.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/align.h"
#include "base/units.h"
#include "diagnose/bench_pattern.h"
#include "os/mapping.h"
#include "os/page_cache.h"
#include "os/thread.h"
#include "transfer/handle_state.h"

namespace headrace {
namespace {

constexpr uint64_t kMemoryBytesDefault = base::kGiB;
constexpr uint64_t kColdShare = 100;  // cold: at most one hundredth is resident
constexpr int kDropAttemptsMax = 5;   // pages under writeback stay until it ends
constexpr uint64_t kComparePieceBytes = 16 * base::kMiB;

std::unexpected<Error> refused(std::string detail) {
  return std::unexpected(
      Error{.code = ErrorCode::invalid_argument, .operation = "benchmark", .detail = std::move(detail)});
}

DirectionStats difference(const DirectionStats& after, const DirectionStats& before) {
  return {.requests = after.requests - before.requests,
          .failed = after.failed - before.failed,
          .bytes = after.bytes - before.bytes,
          .blocks = after.blocks - before.blocks,
          .direct_bytes = after.direct_bytes - before.direct_bytes,
          .buffered_bytes = after.buffered_bytes - before.buffered_bytes,
          .staged_bytes = after.staged_bytes - before.staged_bytes,
          .registered_bytes = after.registered_bytes - before.registered_bytes};
}

void add(DirectionStats& sum, const DirectionStats& more) {
  sum.requests += more.requests;
  sum.failed += more.failed;
  sum.bytes += more.bytes;
  sum.blocks += more.blocks;
  sum.direct_bytes += more.direct_bytes;
  sum.buffered_bytes += more.buffered_bytes;
  sum.staged_bytes += more.staged_bytes;
  sum.registered_bytes += more.registered_bytes;
}

double seconds_between(diagnose::PassEnd::Clock::time_point from, diagnose::PassEnd::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// One byte at `offset` is not what it should be.
std::unexpected<Error> wrong_byte(const File& file, uint64_t offset, const char* detail) {
  return std::unexpected(Error{.code = ErrorCode::corrupt,
                               .operation = "validate",
                               .path = file.path(),
                               .offset_bytes = offset,
                               .detail = detail});
}

}  // namespace

// The passes of one repeat, each on its thread.
struct Passes {
  explicit Passes(size_t count) : ends(count, std::unexpected(diagnose::interrupted())), running(count) {}

  std::vector<Result<diagnose::PassEnd>> ends;  // one for each thread, written by it
  std::vector<std::thread> threads;
  std::atomic<bool> go = false;    // stored by the thread that measures, waited for by the others
  std::atomic<bool> stop = false;  // stored by any, read by all
  std::mutex mutex;
  std::condition_variable ended;
  size_t running;  // guarded by mutex

  void start() {
    go.store(true, std::memory_order_release);
    go.notify_all();
  }
  void join() {
    for (std::thread& thread : threads)
      thread.join();
    threads.clear();
  }
};

Status IoBenchmark::Impl::open_handles() {
  const bool existing = files_->origin() == BenchmarkFiles::Impl::Origin::existing;
  if (existing && !reads()) return refused("files that exist are only read, never written");
  if (existing && validates())
    return refused("what existing files should hold is not known, so it cannot be validated");
  if (!moves_bytes() && validates()) return refused("the engine 'null' moves nothing, so nothing can be validated");
  if (settings_.bytes == 0) settings_.bytes = files_->file_bytes();
  if (settings_.bytes > files_->file_bytes())
    return refused(fmt::format("{} bytes of files that have {}", settings_.bytes, files_->file_bytes()));
  if (settings_.files_at_once == 0) settings_.files_at_once = files_->count();
  if (settings_.files_at_once > files_->count() || files_->count() % settings_.files_at_once != 0)
    return refused(fmt::format("{} of {} files at once; allowed: a divisor of their number", settings_.files_at_once,
                               files_->count()));
  for (uint32_t i = 0; i < settings_.files_at_once; ++i) {
    Result<Handle> handle = Handle::create({.engine = settings_.engine,
                                            .workers = settings_.workers,
                                            .block_bytes = settings_.block_bytes,
                                            .queue_depth = settings_.queue_depth,
                                            .direct = settings_.direct,
                                            .registered = settings_.registered});
    if (!handle) return std::unexpected(std::move(handle).error());
    if (i == 0) facts_ = handle->facts();
    lanes_.push_back({.handle = *std::move(handle), .memory = {}});
  }
  return {};
}

Status IoBenchmark::Impl::take_memory(diagnose::ProgressMeter& meter) {
  const uint64_t block_bytes = facts_.block_bytes;
  uint64_t bytes_max = settings_.memory_bytes_max;
  if (bytes_max == 0)
    bytes_max =
        validates() ? diagnose::available_memory_bytes().value_or(kMemoryBytesDefault) / 2 : kMemoryBytesDefault;
  const uint64_t blocks = (settings_.bytes + block_bytes - 1) / block_bytes;
  const uint64_t blocks_max = std::max<uint64_t>(1, bytes_max / lanes_.size() / block_bytes);
  const uint64_t lane_bytes = std::min(blocks, blocks_max) * block_bytes;
  if (validates() && lane_bytes < settings_.bytes) {
    return refused(
        fmt::format("validating keeps all {} bytes in memory, and {} are allowed", repeat_bytes(), bytes_max));
  }
  const uint64_t stride = base::align_up(lane_bytes, os::kHugePageBytes);
  Result<Buffer> memory = files_->memory(stride * lanes_.size(), settings_.pages, meter);
  if (!memory) return std::unexpected(std::move(memory).error());
  memory_ = *std::move(memory);
  for (size_t i = 0; i < lanes_.size(); ++i)
    lanes_[i].memory = {.data = memory_.data() + i * stride, .bytes = lane_bytes, .device = {}};
  return {};
}

uint64_t IoBenchmark::Impl::missing_bytes() const {
  if (!reads() || !moves_bytes()) return 0;
  uint64_t missing = 0;
  for (uint32_t i = 0; i < files_->count(); ++i)
    missing += files_->missing_bytes(i, settings_.bytes, need());
  return missing;
}

Status IoBenchmark::Impl::make_ready(diagnose::ProgressMeter& meter) {
  if (Status taken = take_memory(meter); !taken) return taken;
  if (!reads() || !moves_bytes()) return {};
  for (uint32_t i = 0; i < files_->count(); ++i) {
    if (Status filled = files_->fill(i, settings_.bytes, need(), meter); !filled) return filled;
  }
  return {};
}

// Everything that must be so when the clock starts.
Result<IoSample> IoBenchmark::Impl::prepare_repeat(uint64_t key, diagnose::ProgressMeter& meter) {
  IoSample sample = {.bytes = repeat_bytes()};
  if (!moves_bytes()) return sample;
  if (reads()) sample.resident_bytes = 0;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (meter.tick(reads() ? "reading" : "writing")) return std::unexpected(diagnose::interrupted());
    const std::span<std::byte> memory(lanes_[lane].memory.data, lanes_[lane].memory.bytes);
    if (!reads()) {
      if (validates()) diagnose::fill_pattern(memory, key + lane, 0);
      files_->begin_write(file_of(lane));
      files_->count_written(settings_.bytes);
      continue;
    }
    // Mostly they are filled; what was written since by others, or by a write that failed, is written anew.
    if (Status filled = files_->fill(file_of(lane), settings_.bytes, need(), meter); !filled)
      return std::unexpected(std::move(filled).error());
    if (validates()) std::ranges::fill(memory, std::byte{});  // only a transfer can bring the bytes back
    const int descriptor = files_->descriptor(file_of(lane));
    std::optional<uint64_t> resident;
    for (int attempt = 0; attempt < kDropAttemptsMax; ++attempt) {
      if (settings_.cache == CacheBefore::drop) (void)os::drop_from_cache(descriptor);
      resident = os::resident_bytes(descriptor, 0, settings_.bytes);
      if (settings_.cache != CacheBefore::drop || !resident || *resident <= settings_.bytes / kColdShare) break;
    }
    if (!resident) sample.resident_bytes.reset();
    if (sample.resident_bytes) *sample.resident_bytes += *resident;
  }
  if (settings_.direct == Ladder::never && diagnose::prime_memory(sample.bytes, meter) == diagnose::Primed::stopped)
    return std::unexpected(diagnose::interrupted());
  return sample;
}

diagnose::Pass IoBenchmark::Impl::pass_of(uint32_t lane) {
  // Reads that may be direct come from the device, whatever sits in the page cache: that is what is measured.
  const CacheMode cache = settings_.direct == Ladder::never ? CacheMode::use : CacheMode::bypass;
  return {.handle = &lanes_[lane].handle,
          .file = files_->file(file_of(lane)),
          .memory = lanes_[lane].memory,
          .direction = settings_.direction,
          .request = settings_.request,
          .order = settings_.order,
          .copy = settings_.copy,
          .cache = cache,
          .durability = reads() || !moves_bytes() ? Durability::none : settings_.durability,
          .bytes = settings_.bytes,
          .block_bytes = facts_.block_bytes,
          .blocks_at_once = uint64_t{facts_.queue_depth} * facts_.workers};
}

uint64_t IoBenchmark::Impl::device_bytes_now() const {
  const diagnose::DeviceBytes bytes = diagnose::device_bytes().value_or(diagnose::DeviceBytes{});
  return reads() ? bytes.read : bytes.written;
}

Status IoBenchmark::Impl::time(IoSample& sample, diagnose::ProgressMeter& meter) {
  Passes passes(lanes_.size());
  std::vector<diagnose::Pass> what;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane)
    what.push_back(pass_of(lane));
  for (size_t lane = 0; lane < what.size(); ++lane) {
    Result<std::thread> thread = os::start_thread("headrace-bench", [&passes, &pass = what[lane], lane] {
      passes.go.wait(false);
      passes.ends[lane] = diagnose::drive(pass, passes.stop);
      if (!passes.ends[lane]) passes.stop.store(true);
      const std::lock_guard lock(passes.mutex);
      --passes.running;
      passes.ended.notify_all();
    });
    if (!thread) {
      passes.stop.store(true);
      passes.start();
      passes.join();
      return std::unexpected(std::move(thread).error());
    }
    passes.threads.push_back(*std::move(thread));
  }
  const std::optional<diagnose::DeviceBytes> device_before = diagnose::device_bytes();
  const uint64_t moved_before = device_bytes_now();
  const double cpu_before = diagnose::cpu_seconds();
  const auto began = diagnose::PassEnd::Clock::now();
  passes.start();
  Status status = wait_for(passes, moved_before, meter);
  if (!status) return status;
  sample.cpu_seconds = diagnose::cpu_seconds() - cpu_before;
  if (device_before) sample.device_bytes = device_bytes_now() - moved_before;
  for (const Result<diagnose::PassEnd>& end : passes.ends) {
    sample.transfer_seconds = std::max(sample.transfer_seconds, seconds_between(began, end->transferred));
    sample.seconds = std::max(sample.seconds, seconds_between(began, end->durable));
    why_ = end->why;
  }
  return {};
}

// Until all passes have ended, whatever happens: they use the memory before.
Status IoBenchmark::Impl::wait_for(Passes& passes, uint64_t device_before, diagnose::ProgressMeter& meter) const {
  bool by_user = false;
  {
    std::unique_lock lock(passes.mutex);
    while (!passes.ended.wait_for(lock, diagnose::ProgressMeter::kEvery, [&] { return passes.running == 0; })) {
      lock.unlock();
      const uint64_t moved = std::min(device_bytes_now() - device_before, repeat_bytes());
      by_user = meter.tick(reads() ? "reading" : "writing", moved);
      if (by_user) passes.stop.store(true);
      lock.lock();
    }
  }
  passes.join();
  if (by_user) return std::unexpected(diagnose::interrupted());
  std::optional<Error> found;
  for (const Result<diagnose::PassEnd>& end : passes.ends) {
    // Those that were stopped because another failed are not the reason.
    if (!end && (!found || found->code == ErrorCode::interrupted)) found = end.error();
  }
  if (found) return std::unexpected(*std::move(found));
  return {};
}

IoBenchmark::Impl::Counters IoBenchmark::Impl::counters() const {
  Counters sum;
  for (const Lane& lane : lanes_) {
    const HandleStats stats = lane.handle.stats();
    add(sum.sums, reads() ? stats.reads : stats.writes);
    const auto latencies = lane.handle.internal()->latencies();
    const base::LatencyHistogram::Counts& counts = latencies[reads() ? 0 : 1];
    for (size_t i = 0; i < counts.size(); ++i)
      sum.latencies[i] += counts[i];
  }
  return sum;
}

Status IoBenchmark::Impl::check_counted(const Counters& before, const Counters& after) const {
  const uint64_t bytes = after.sums.bytes - before.sums.bytes;
  if (bytes == repeat_bytes()) return {};
  return std::unexpected(
      Error{.code = ErrorCode::corrupt,
            .operation = "benchmark",
            .path = files_->file(first_file_).path(),
            .detail = fmt::format("the handles counted {} bytes, and {} were asked for", bytes, repeat_bytes())});
}

Status IoBenchmark::Impl::validate_read(uint32_t lane, diagnose::ProgressMeter& meter) {
  const uint32_t file = file_of(lane);
  const std::byte* const data = lanes_[lane].memory.data;
  const uint64_t key = *files_->content(file).key;
  for (uint64_t offset = 0; offset < settings_.bytes; offset += kComparePieceBytes) {
    if (meter.tick("comparing", repeat_bytes())) return std::unexpected(diagnose::interrupted());
    const std::span part(data + offset, std::min(kComparePieceBytes, settings_.bytes - offset));
    if (const std::optional<uint64_t> at = diagnose::find_difference(part, key, offset))
      return wrong_byte(files_->file(file), offset + *at, "the byte that was read is not the one that was written");
  }
  return {};
}

Status IoBenchmark::Impl::validate_written(uint32_t lane, uint64_t key, diagnose::ProgressMeter& meter) {
  const File& file = files_->file(file_of(lane));
  (void)os::drop_from_cache(files_->descriptor(file_of(lane)));
  Result<Handle> handle = Handle::create();
  if (!handle) return std::unexpected(std::move(handle).error());
  Result<Buffer> memory = Buffer::create(kComparePieceBytes);
  if (!memory) return std::unexpected(std::move(memory).error());
  for (uint64_t offset = 0; offset < settings_.bytes; offset += kComparePieceBytes) {
    if (meter.tick("reading back", repeat_bytes())) return std::unexpected(diagnose::interrupted());
    const std::span part(memory->data(), std::min(kComparePieceBytes, settings_.bytes - offset));
    const Result<Transfer> read = handle->read(
        file, {.offset_bytes = offset, .target = {part.data(), part.size(), {}}, .cache = CacheMode::bypass});
    if (!read) return std::unexpected(read.error());
    if (const Result<uint64_t> done = read->result(); !done) return std::unexpected(done.error());
    if (const std::optional<uint64_t> at = diagnose::find_difference(part, key, offset))
      return wrong_byte(file, offset + *at, "the byte that was read back is not the one that was written");
  }
  return {};
}

Status IoBenchmark::Impl::validate(uint64_t key, diagnose::ProgressMeter& meter) {
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    Status valid = reads() ? validate_read(lane, meter) : validate_written(lane, key + lane, meter);
    if (!valid) return valid;
  }
  validated_bytes_ += repeat_bytes();
  return {};
}

Result<IoSample> IoBenchmark::Impl::run(Count count, diagnose::ProgressMeter& meter) {
  const auto began = diagnose::PassEnd::Clock::now();
  first_file_ = turn_++ * settings_.files_at_once % files_->count();
  const uint64_t key = diagnose::random_key();
  Result<IoSample> sample = prepare_repeat(key, meter);
  if (!sample) return sample;
  const Counters before = counters();
  if (Status timed = time(*sample, meter); !timed) return std::unexpected(std::move(timed).error());
  const Counters after = counters();
  if (Status checked = check_counted(before, after); !checked) return std::unexpected(std::move(checked).error());
  if (validates()) {
    if (Status valid = validate(key, meter); !valid) return std::unexpected(std::move(valid).error());
  }
  for (uint32_t lane = 0; !reads() && moves_bytes() && lane < lanes_.size(); ++lane) {
    files_->end_write(file_of(lane),
                      {.bytes = settings_.bytes, .key = validates() ? std::optional(key + lane) : std::nullopt});
  }
  if (moves_bytes()) meter.add(sample->bytes);
  sample->whole_seconds = seconds_between(began, diagnose::PassEnd::Clock::now());
  if (count == Count::warm_up) return sample;
  add(totals_.sums, difference(after.sums, before.sums));
  for (size_t i = 0; i < totals_.latencies.size(); ++i)
    totals_.latencies[i] += after.latencies[i] - before.latencies[i];
  if (sample->resident_bytes) cold_ = cold_.value_or(true) && *sample->resident_bytes <= sample->bytes / kColdShare;
  samples_.push_back(*sample);
  return sample;
}

IoResult IoBenchmark::Impl::result() const {
  constexpr double kGiga = 1e9;
  IoResult result = {.settings = settings_,
                     .handle = facts_,
                     .samples = samples_,
                     .totals = totals_.sums,
                     .why = why_,
                     .cold = cold_,
                     .validated_bytes = validated_bytes_,
                     .memory_bytes = memory_.bytes(),
                     .memory_huge_bytes = memory_.huge_bytes(),
                     .pages = memory_.pages(),
                     .existing_files = files_->origin() == BenchmarkFiles::Impl::Origin::existing,
                     .places = files_->places(),
                     .machine = machine_};
  std::vector<double> rates;
  std::vector<double> costs;
  for (const IoSample& sample : samples_) {
    const double gigabytes = static_cast<double>(sample.bytes) / kGiga;
    rates.push_back(gigabytes / sample.seconds);
    costs.push_back(sample.cpu_seconds / gigabytes);
  }
  result.gb_per_s = spread_of(rates);
  result.cpu_seconds_per_gb = spread_of(costs);
  constexpr std::array<uint64_t, 5> kPerMille = {500, 900, 990, 999, 1000};
  for (size_t i = 0; i < kPerMille.size(); ++i)
    result.totals.latency_ns[i] = base::LatencyHistogram::percentile(totals_.latencies, kPerMille[i]);
  return result;
}

IoBenchmark::IoBenchmark(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
IoBenchmark::IoBenchmark(IoBenchmark&&) noexcept = default;
IoBenchmark& IoBenchmark::operator=(IoBenchmark&&) noexcept = default;
IoBenchmark::~IoBenchmark() = default;

Result<IoBenchmark> IoBenchmark::prepare(const BenchmarkFiles& files, const IoSettings& settings,
                                         const Progress& progress) {
  auto impl = std::make_unique<Impl>(files.internal(), settings);
  if (Status opened = impl->open_handles(); !opened) return std::unexpected(std::move(opened).error());
  diagnose::ProgressMeter meter(progress, impl->missing_bytes());
  if (Status ready = impl->make_ready(meter); !ready) return std::unexpected(std::move(ready).error());
  return IoBenchmark(std::move(impl));
}

Result<IoSample> IoBenchmark::run(Count count, const Progress& progress) {
  diagnose::ProgressMeter meter(progress, repeat_bytes());
  return impl_->run(count, meter);
}

uint64_t IoBenchmark::repeat_bytes() const noexcept { return impl_->repeat_bytes(); }
IoResult IoBenchmark::result() const { return impl_->result(); }

std::string_view direction_name(IoDirection direction) noexcept {
  return direction == IoDirection::read ? "read" : "write";
}

}  // namespace headrace
