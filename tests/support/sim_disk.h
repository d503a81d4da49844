// SPDX-License-Identifier: Apache-2.0
// A disk in memory with an engine and a file system in front of it, for tests of `transfer`: any order of completion,
// short transfers, refusals and stuck requests, all from a seed. What breaks the engine contract is written down.
// Any thread, but each engine has one owner thread. The disk must outlive its engines and file systems.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace headrace::test {

struct SimRange {
  uint64_t begin = 0, end = 0;
};

struct SimFile {
  std::string name;
  std::vector<std::byte> bytes;           // its size is the file's length
  uint64_t capacity = UINT64_MAX;         // a write beyond gets ENOSPC
  std::vector<SimRange> bad;              // whole granules that answer EIO
  bool refuses_direct_transfers = false;  // EINVAL, although the open was taken
};

// One block as the engine took it.
struct SimIo {
  engine::Block block;
  std::shared_ptr<SimFile> file;
  uint32_t engine = 0;
};

// Chances in 1000, for each block or call.
struct SimChances {
  uint32_t short_transfer = 0;
  uint32_t interrupted = 0;  // EINTR
  uint32_t try_again = 0;    // EAGAIN
  uint32_t io_error = 0;     // EIO, and the same for those below: the block moves nothing
  uint32_t no_space = 0;     // ENOSPC, of writes
  uint32_t cancelled = 0;    // ECANCELED
  uint32_t full = 0;         // submit() takes a shorter prefix, maybe nothing
  uint32_t idle_return = 0;  // reap() returns nothing although something is done
};

struct SimOptions {
  uint64_t seed = 1;
  SimChances chances = {};
  uint32_t depth_max = 4096;
  uint32_t memory_slots = 0;
  uint32_t registrations_max = UINT32_MAX;  // the next one is refused
  int registration_errno = 12;              // ENOMEM
  uint32_t direct_memory_bytes = 512;
  uint32_t direct_offset_bytes = 512;
  bool keep_log = true;  // taken(), completed(), faults(): not for an hour of stress
};

class SimDisk {
 public:
  explicit SimDisk(SimOptions options = {}) : options_(options) {}
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  [[nodiscard]] engine::EngineFactory factory();
  [[nodiscard]] const SimOptions& options() const noexcept { return options_; }

  // Asked for each block as it completes: a negative errno, the most bytes to move, or nothing to let it go on.
  using Script = std::function<std::optional<int64_t>(const SimIo&)>;
  void set_script(Script script);
  // Blocks wait while this says so; asked again at every change().
  using Stuck = std::function<bool(const SimIo&)>;
  void set_stuck(Stuck stuck);
  // Nothing completes until let() or release().
  void hold();
  void let(uint32_t completions);
  void release();

  enum class Room : uint8_t { as_usual, none };
  void set_room(Room room);  // none: submit() takes nothing
  // Until so many blocks were taken since the beginning. False after a minute.
  [[nodiscard]] bool wait_for_taken(size_t count);
  [[nodiscard]] std::vector<SimIo> taken() const;      // in order of submission
  [[nodiscard]] std::vector<SimIo> completed() const;  // in order of completion
  struct Fault {
    SimIo io;
    int errno_value = 0;
  };
  // Blocks that moved nothing for good: not EINTR, EAGAIN, nor EINVAL of a refused direct transfer.
  [[nodiscard]] std::vector<Fault> faults() const;
  [[nodiscard]] std::vector<std::string> violations() const;
  [[nodiscard]] uint64_t registered_now() const;

  // --- for SimFileSystem ---
  // Guards the files, too.
  [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }
  void bind(int descriptor, std::shared_ptr<SimFile> file, engine::Path path);
  [[nodiscard]] std::shared_ptr<SimFile> file_of(int descriptor) const;

 private:
  friend class SimEngine;
  struct Bound {
    std::shared_ptr<SimFile> file;
    engine::Path path = engine::Path::buffered;
  };

  const SimOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_:
  std::map<int, Bound> descriptors_;
  Script script_;
  Stuck stuck_;
  bool held_ = false;
  Room room_ = Room::as_usual;
  uint32_t allowed_ = 0;  // completions let through while held
  size_t taken_count_ = 0;
  std::vector<SimIo> taken_, completed_;
  std::vector<Fault> faults_;
  std::vector<std::string> violations_;
  uint32_t engines_ = 0;
  uint32_t registrations_ = 0;  // ever
  uint64_t registered_now_ = 0;
};

}  // namespace headrace::test
