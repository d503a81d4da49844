// SPDX-License-Identifier: Apache-2.0
// How fast files can be read and written here: one measuring core for `headrace bench`, `headrace tune` and programs.
// One thread at a time for each set of files and everything measured on it; calls block, tell their progress and can be stopped.
// A set of files owns its files, which have no name: they are gone with the last object that uses them, however the process ends.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/buffer.h>
#include <headrace/error.h>
#include <headrace/handle.h>
#include <headrace/progress.h>
#include <headrace/request.h>

namespace headrace {

// What repeated measurements say together.
struct Spread {
  uint64_t count = 0;
  double median = 0;
  double min = 0;
  double max = 0;
  // [low, high] holds the true median with a probability of 95 % or more, whatever the distribution (order statistics). Six
  // values are the least for that: with fewer, `sure` is false and low and high are min and max.
  double low = 0;
  double high = 0;
  bool sure = false;
};

// All zero for no values.
[[nodiscard]] HEADRACE_EXPORT Spread spread_of(std::span<const double> values);

struct BenchmarkFilesOptions {
  std::vector<std::string> folders = {};  // 1..kBenchmarkFilesMax; file i lies in folder i modulo their number
  uint64_t file_bytes = 0;                // of each file
  uint32_t files_per_folder = 1;
};

inline constexpr uint32_t kBenchmarkFilesMax = 64;  // of one set

// A block device is never written. Reading one needs no less care than its permissions ask for, and a word from the user.
enum class BlockDevice : uint8_t { refuse, may_be_read };

// Where files lie, as the system describes it. Empty: not known.
struct BenchmarkPlace {
  std::string path;           // the folder, or the existing file, as given
  std::string file_system;    // "ext4"
  std::string mount_options;  // "rw,relatime"
  std::string device;         // "nvme0n1"; the whole disk's name for a partition
  std::string device_model;
};

class HEADRACE_EXPORT BenchmarkFiles {
 public:
  // New files, preallocated. They are made without a name (O_TMPFILE; where a file system has no such thing, under a name that
  // nobody can guess, which is removed at once), so nothing is ever overwritten and nothing stays behind, not even after
  // SIGKILL. ENOSPC, with what is free, unless 5 % of the file system or 1 GiB, whichever is less, stays free beside them.
  [[nodiscard]] static Result<BenchmarkFiles> create(const BenchmarkFilesOptions& options);
  // Files (or block devices) that exist; they are only read. The smallest one's length is file_bytes().
  [[nodiscard]] static Result<BenchmarkFiles> open_existing(std::span<const std::string> paths,
                                                            BlockDevice block_device);

  BenchmarkFiles(BenchmarkFiles&&) noexcept;
  BenchmarkFiles& operator=(BenchmarkFiles&&) noexcept;
  ~BenchmarkFiles();

  [[nodiscard]] uint32_t count() const noexcept;
  [[nodiscard]] uint64_t file_bytes() const noexcept;
  [[nodiscard]] bool existing() const noexcept;
  // Under which another process of this user can open a file while this one runs and the set lives: for fio and the like.
  [[nodiscard]] std::string path_for_others(uint32_t index) const;
  // Everything that was written into them so far, also what fills them before they are read. SSDs wear.
  [[nodiscard]] uint64_t written_bytes() const noexcept;
  // Somebody else wrote into the files: what they hold is not known any more, and a validated read fills them again.
  void written_by_others(uint64_t bytes);
  // One for each folder, or each existing file.
  [[nodiscard]] const std::vector<BenchmarkPlace>& places() const noexcept;

  class Impl;  // of the library
  [[nodiscard]] const std::shared_ptr<Impl>& internal() const noexcept { return impl_; }

 private:
  explicit BenchmarkFiles(std::shared_ptr<Impl> impl) noexcept;
  std::shared_ptr<Impl> impl_;
};

enum class IoDirection : uint8_t { read, write };

// How a file is cut into requests. The library cuts requests into blocks in any case.
enum class RequestSize : uint8_t {
  file,   // one submission for all of it (for Order::in_batches: for each batch)
  block,  // each block is a request, submitted by itself; queue_depth × workers of them are unfinished at a time
};
enum class RequestOrder : uint8_t {
  overlapping,  // the queue is kept full
  in_batches,   // queue_depth × workers blocks; the next ones only when the last of them is done
};

enum class CacheBefore : uint8_t {
  drop,  // written out and dropped from the page cache before each repeat; IoSample::resident_bytes is what stayed
  leave_as_is,
};

enum class Validate : uint8_t { no, all_bytes };

struct IoSettings {
  IoDirection direction = IoDirection::read;
  uint64_t bytes = 0;          // from the start of each file; 0: all of it
  uint32_t files_at_once = 0;  // 0: all; fewer, a divisor of their number: repeats take the files in turn
  // Each file has a handle of its own. These are HandleOptions; zeros are its defaults.
  EngineKind engine = EngineKind::automatic;
  uint64_t block_bytes = 0;
  uint32_t queue_depth = 0;
  uint32_t workers = 0;
  Ladder direct = Ladder::automatic;
  Ladder registered = Ladder::automatic;
  // The memory that is read into and written from: Buffers, touched before anything is timed and used by all repeats.
  PageKind pages = PageKind::transparent;
  CopyMode copy = CopyMode::automatic;
  uint64_t memory_bytes_max =
      0;  // parts of a file share memory beyond that; 0: 1 GiB (validated: half of what is available)
  RequestSize request = RequestSize::file;
  RequestOrder order = RequestOrder::overlapping;
  CacheBefore cache = CacheBefore::drop;     // reads. Unless direct is `never` they come from the device in any case
  Durability durability = Durability::data;  // writes: `data` has the fdatasync inside the time
  // Reads: what arrived in memory is compared with what was written; only for files of the set's own. Writes: each repeat writes
  // other bytes, which are read back from the device. Outside the time. A difference is ErrorCode::corrupt with its offset.
  Validate validate = Validate::no;
  uint32_t repeats = 3;   // of benchmark_io(), 1..kBenchmarkRepeatsMax
  uint32_t warm_ups = 1;  // of benchmark_io(), beforehand, not counted
};

inline constexpr uint32_t kBenchmarkRepeatsMax = 10'000;

// One repeat. All files at once count together.
struct IoSample {
  double seconds = 0;           // from the first request to the last byte; durable writes: to the end of the sync
  double transfer_seconds = 0;  // the same without the sync
  double whole_seconds = 0;     // with what was done around it: cache dropped, memory primed, bytes compared
  double cpu_seconds = 0;       // user and system time of this process during `seconds`
  uint64_t bytes = 0;
  // By /proc/self/io: what this process read from, or wrote towards, block devices in the time. None where it is not told.
  std::optional<uint64_t> device_bytes = {};
  // Reads: of the bytes asked for, how many sat in the page cache just before. None where it cannot be told.
  std::optional<uint64_t> resident_bytes = {};
};

struct BenchmarkMachine {
  std::string kernel;        // "6.18.5"
  std::string architecture;  // "x86_64"
  std::string processor;     // as /proc/cpuinfo names it; empty: not known
  uint32_t processors = 0;   // that this process may use
  uint64_t memory_bytes = 0;
};

struct IoResult {
  IoSettings settings;  // as asked for, with `bytes` and `files_at_once` filled in
  HandleFacts handle;   // what a handle settled on; each file has one
  std::vector<IoSample> samples;
  Spread gb_per_s;            // 10^9 bytes
  Spread cpu_seconds_per_gb;  // 10^9 bytes
  // Of the counted repeats. `latency_ns` is that of requests: of whole files for RequestSize::file.
  DirectionStats totals;
  std::string why;                 // Route::why: why not the faster route; empty when there was none
  std::optional<bool> cold;        // reads: at most 1 % of the bytes sat in the page cache before each repeat
  uint64_t validated_bytes = 0;    // compared and found right
  uint64_t memory_bytes = 0;       // of all files
  uint64_t memory_huge_bytes = 0;  // of these, on huge pages
  PageKind pages = PageKind::unknown;
  bool existing_files = false;
  std::vector<BenchmarkPlace> places;
  BenchmarkMachine machine;
};

// One setting on one set of files, ready to be timed. The repeats of several can be taken in turn, which is how to compare them on a
// disk that others use too. They share the set's memory, so one runs at a time.
class HEADRACE_EXPORT IoBenchmark {
 public:
  // Makes the handles, takes and touches the memory and, for reads, fills the files if they are not yet.
  // Writing into existing files is ErrorCode::invalid_argument, as is what HandleOptions refuses.
  [[nodiscard]] static Result<IoBenchmark> prepare(const BenchmarkFiles& files, const IoSettings& settings,
                                                   const Progress& progress = {});
  IoBenchmark(IoBenchmark&&) noexcept;
  IoBenchmark& operator=(IoBenchmark&&) noexcept;
  ~IoBenchmark();

  enum class Count : uint8_t { yes, warm_up };
  // One repeat. `progress` counts its bytes. The first error of a transfer, a wrong byte, or ErrorCode::interrupted come back;
  // nothing is under way any more then.
  [[nodiscard]] Result<IoSample> run(Count count, const Progress& progress = {});
  // What one repeat moves, all files together.
  [[nodiscard]] uint64_t repeat_bytes() const noexcept;
  // Of the repeats that counted so far.
  [[nodiscard]] IoResult result() const;

  class Impl;  // of the library

 private:
  explicit IoBenchmark(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// prepare(), the warm-ups and the repeats. Progress counts all of them together, and what fills the files.
[[nodiscard]] HEADRACE_EXPORT Result<IoResult> benchmark_io(const BenchmarkFiles& files, const IoSettings& settings,
                                                            const Progress& progress = {});

struct EngineRow {
  EngineKind engine = EngineKind::automatic;
  IoDirection direction = IoDirection::read;
  Result<IoResult> result;  // ErrorCode::unavailable and the like: why this engine cannot work here
};

struct EnginesOptions {
  std::vector<EngineKind> engines = {EngineKind::null, EngineKind::posix, EngineKind::aio, EngineKind::uring};
  std::vector<IoDirection> directions = {IoDirection::read, IoDirection::write};
  IoSettings settings = {};  // engine and direction are set by the rows
};

// Each engine in each direction, in turn: the first repeat of all, then the second of all, each time from another one on. An engine
// that does not work here has its error in its row; interruption and a full disk end the whole.
[[nodiscard]] HEADRACE_EXPORT Result<std::vector<EngineRow>> benchmark_engines(const BenchmarkFiles& files,
                                                                               const EnginesOptions& options,
                                                                               const Progress& progress = {});

[[nodiscard]] HEADRACE_EXPORT std::string_view direction_name(IoDirection direction) noexcept;  // "read", "write"

// docs/schema/bench-io.json and docs/schema/bench-engines.json describe them.
[[nodiscard]] HEADRACE_EXPORT std::string to_json(std::span<const IoResult> results);
[[nodiscard]] HEADRACE_EXPORT std::string to_json(std::span<const EngineRow> rows);

}  // namespace headrace
