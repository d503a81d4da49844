// SPDX-License-Identifier: Apache-2.0
// Three shapes for each engine: ordinary memory in bulk, a Buffer, and a range of which nothing is aligned.
// One thread.
// See the header for ownership.
#include "diagnose/report_trial.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <headrace/buffer.h>
#include <headrace/handle.h>

#include "base/units.h"
#include "diagnose/trial_file.h"
#include "os/direct_io.h"
#include "os/error.h"
#include "os/page_cache.h"

namespace headrace::diagnose {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array kEngines = {EngineKind::uring, EngineKind::aio, EngineKind::posix};
constexpr uint64_t kBulkBytes = 4 * base::kMiB;
constexpr uint64_t kTrialBytes = 2 * kBulkBytes;
constexpr std::chrono::milliseconds kAskEvery{50};

enum class Memory : uint8_t { ordinary, buffer };

struct Shape {
  const char* name;
  uint64_t offset_bytes;
  uint64_t length_bytes;
  Memory memory;
  uint64_t skip_bytes;  // of the address, so that it is not aligned either
};
// The ragged one lies inside the bulk, whose other bytes must stay as they are.
constexpr std::array kShapes = {
    Shape{"bulk", 0, kBulkBytes, Memory::ordinary, 0},
    Shape{"buffer", kBulkBytes, kBulkBytes, Memory::buffer, 0},
    Shape{"ragged", 12'345, base::kMiB + 777, Memory::ordinary, 3},
};
static_assert(kShapes[2].offset_bytes + kShapes[2].length_bytes < kBulkBytes);

// Nobody can know them before: a file's old contents, or zeros, are never taken for them.
class RandomBytes {
 public:
  [[nodiscard]] bool seed() { return ::getrandom(&state_, sizeof state_, 0) == ssize_t{sizeof state_}; }
  void fill(std::byte* data, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
      const uint64_t word = next();
      std::memcpy(data + at, &word, std::min<uint64_t>(sizeof word, bytes - at));
    }
  }

 private:
  // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  uint64_t state_ = 0;
};

// Zeros. Its bytes live as long as the last transfer that uses them: a Buffer sees to that itself.
struct Bytes {
  std::shared_ptr<std::vector<std::byte>> ordinary;
  Buffer buffer;
  std::byte* data = nullptr;
};

Result<Bytes> allocate(const Shape& shape) {
  Bytes bytes;
  if (shape.memory == Memory::buffer) {
    Result<Buffer> buffer = Buffer::create(shape.length_bytes);
    if (!buffer) return std::unexpected(std::move(buffer).error());
    bytes.buffer = *std::move(buffer);
    bytes.data = bytes.buffer.data();
  } else {
    bytes.ordinary = std::make_shared<std::vector<std::byte>>(shape.length_bytes + shape.skip_bytes);
    bytes.data = bytes.ordinary->data() + shape.skip_bytes;
  }
  return bytes;
}

class Trial {
 public:
  Trial(const FolderReport& folder, const TrialOptions& options, const TrialFile& trial_file)
      : folder_(folder), options_(options), trial_file_(trial_file), deadline_(Clock::now() + options.patience) {}

  [[nodiscard]] Status start() {
    image_.resize(kTrialBytes);
    if (random_.seed()) return {};
    return std::unexpected(os::system_error("getrandom", folder_.path, errno));
  }
  [[nodiscard]] bool gave_up() const { return gave_up_; }

  // One after the other, until one fails.
  void run(Handle& handle, const File& file, EngineReport& report) {
    for (const Shape& shape : kShapes) {
      RoundTrip trip = {.shape = shape.name, .offset_bytes = shape.offset_bytes, .length_bytes = shape.length_bytes};
      Status moved = move(handle, file, shape, trip);
      if (!moved) trip.error = std::move(moved).error();
      trip.bytes_right = !trip.error;
      if (trip.error && trip.error->code != ErrorCode::invalid_argument) trip.error->path = folder_.path;
      report.round_trips.push_back(std::move(trip));
      if (report.round_trips.back().error) return;
    }
  }

 private:
  [[nodiscard]] bool asked_to_stop() const { return options_.interrupted && options_.interrupted(); }

  [[nodiscard]] Result<Route> finish(Result<Transfer> started, const Bytes& bytes, const Shape& shape) {
    if (!started) return std::unexpected(std::move(started).error());
    if (bytes.ordinary) started->keep_alive(bytes.ordinary);
    while (!started->wait_for(kAskEvery)) {
      const bool late = Clock::now() > deadline_;
      if (!late && !asked_to_stop()) continue;
      started->abort();
      gave_up_ = true;
      Error error = {.code = late ? ErrorCode::timed_out : ErrorCode::interrupted, .operation = "round trip"};
      if (late)
        error.detail =
            "the device did not answer in time; look into the kernel log (dmesg), or at a server that is away";
      return std::unexpected(std::move(error));
    }
    const Result<uint64_t> moved = started->result();
    if (!moved) return std::unexpected(moved.error());
    if (*moved != shape.length_bytes) return std::unexpected(wrong(shape, *moved, "is missing"));
    return started->route().value_or(Route{});
  }

  [[nodiscard]] static Error wrong(const Shape& shape, uint64_t at, std::string_view how) {
    return {.code = ErrorCode::corrupt,
            .operation = "compare",
            .offset_bytes = shape.offset_bytes + at,
            .detail = fmt::format("the byte read back {}; do not use this engine in this folder, and tell us", how)};
  }

  [[nodiscard]] Status move(Handle& handle, const File& file, const Shape& shape, RoundTrip& trip) {
    Result<Bytes> source = allocate(shape);
    Result<Bytes> target = allocate(shape);
    if (!source) return std::unexpected(std::move(source).error());
    if (!target) return std::unexpected(std::move(target).error());
    random_.fill(source->data, shape.length_bytes);
    std::memcpy(image_.data() + shape.offset_bytes, source->data, shape.length_bytes);
    const WriteRequest write = {.offset_bytes = shape.offset_bytes,
                                .source = {source->data, shape.length_bytes, {}},
                                .durability = Durability::data};
    Result<Route> written = finish(handle.write(file, write), *source, shape);
    if (!written) return std::unexpected(std::move(written).error());
    trip.write = *std::move(written);
    trip.read_from = drop_from_cache(shape);
    Result<Route> read = read_back(handle, file, shape, *target);
    if (!read) return std::unexpected(std::move(read).error());
    trip.read = *std::move(read);
    if (trip.read.direct_bytes == shape.length_bytes && !folder_.file_system.in_memory)
      trip.read_from = ReadFrom::device;
    if (Status same = compare(shape, *target); !same) return same;
    return shape.skip_bytes == 0 ? Status{} : check_neighbours(handle, file);
  }

  [[nodiscard]] Result<Route> read_back(Handle& handle, const File& file, const Shape& shape, const Bytes& target) {
    const ReadRequest request = {.offset_bytes = shape.offset_bytes,
                                 .target = {target.data, shape.length_bytes, {}},
                                 .cache = CacheMode::bypass};
    return finish(handle.read(file, request), target, shape);
  }

  [[nodiscard]] Status compare(const Shape& shape, const Bytes& target) const {
    const std::byte* expected = image_.data() + shape.offset_bytes;
    if (std::memcmp(expected, target.data, shape.length_bytes) == 0) return {};
    const auto at = std::mismatch(expected, expected + shape.length_bytes, target.data).first - expected;
    return std::unexpected(wrong(shape, static_cast<uint64_t>(at), "is not the byte written"));
  }

  // A ragged write changes nothing beside its range.
  [[nodiscard]] Status check_neighbours(Handle& handle, const File& file) {
    const Shape& all = kShapes[0];
    Result<Bytes> target = allocate(all);
    if (!target) return std::unexpected(std::move(target).error());
    const Result<Route> read = read_back(handle, file, all, *target);
    if (!read) return std::unexpected(read.error());
    return compare(all, *target);
  }

  // So that where direct I/O is refused, too, bytes come from the device if that can be had.
  [[nodiscard]] ReadFrom drop_from_cache(const Shape& shape) const {
    if (folder_.file_system.in_memory) return ReadFrom::memory;
    const int descriptor = trial_file_.descriptor();
    (void)::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    const std::optional<uint64_t> resident = os::resident_bytes(descriptor, shape.offset_bytes, shape.length_bytes);
    return resident == uint64_t{0} ? ReadFrom::device : ReadFrom::page_cache;
  }

  const FolderReport& folder_;
  const TrialOptions& options_;
  const TrialFile& trial_file_;
  const Clock::time_point deadline_;
  std::vector<std::byte> image_;  // of what the file holds
  RandomBytes random_;
  bool gave_up_ = false;
};

// Direct I/O as the system tells it, before anything is moved.
DirectFacts direct_facts(const TrialFile& trial_file) {
  const File& file = trial_file.file(0);
  const os::DirectAlignment told = os::query_direct_alignment(trial_file.descriptor());
  DirectFacts facts;
  facts.accepted = file.direct_offset_alignment_bytes() != 0;
  facts.told = told.told;
  if (!facts.accepted) return facts;
  facts.memory_alignment_bytes = file.direct_memory_alignment_bytes();
  facts.offset_alignment_bytes = file.direct_offset_alignment_bytes();
  return facts;
}

Error interrupted_error(const FolderReport& folder) {
  return {.code = ErrorCode::interrupted, .operation = "report", .path = folder.path, .detail = "stopped as asked"};
}

}  // namespace

Status try_engines(FolderReport& folder, const LockedMemoryFacts& locked, const TrialOptions& options) {
  const Result<TrialFile> trial_file = TrialFile::create(folder.real_path, kTrialBytes, kEngines.size());
  if (!trial_file) return std::unexpected(trial_file.error());
  folder.direct = direct_facts(*trial_file);
  Result<Handle> nothing_refused = Handle::create({.engine = EngineKind::null});
  if (!nothing_refused) return std::unexpected(std::move(nothing_refused).error());
  const HandleFacts best = nothing_refused->facts();
  nothing_refused = Handle();
  Trial trial(folder, options, *trial_file);
  if (Status started = trial.start(); !started) return started;
  for (size_t i = 0; i < kEngines.size(); ++i) {
    if (options.interrupted && options.interrupted()) return std::unexpected(interrupted_error(folder));
    EngineReport report = {.engine = kEngines[i]};
    if (trial.gave_up()) {
      report.why = "the device did not answer an earlier engine";
      folder.engines.push_back(std::move(report));
      continue;
    }
    if (options.before_each) options.before_each(kEngines[i]);
    Result<Handle> handle = Handle::create({.engine = kEngines[i]});
    if (!handle) {
      Error error = std::move(handle).error();
      report.verdict = Verdict::failed;
      report.remedy = std::exchange(error.detail, {});
      report.why = error.message();
    } else {
      report.detail = handle->facts().engine_detail;
      trial.run(*handle, trial_file->file(i), report);
      if (!report.round_trips.empty() && report.round_trips.back().error &&
          report.round_trips.back().error->code == ErrorCode::interrupted)
        return std::unexpected(interrupted_error(folder));
      judge(report, folder, locked, handle->facts(), best);
    }
    folder.engines.push_back(std::move(report));
  }
  return {};
}

}  // namespace headrace::diagnose
