// SPDX-License-Identifier: Apache-2.0
// Everything happens at completion, in reap(): memory that was freed too early is touched there.
#include "tests/support/sim_disk.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/align.h"

namespace headrace::test {

using engine::Block;
using engine::Completion;
using engine::Operation;
using engine::Path;

class SimEngine final : public engine::Engine {
 public:
  SimEngine(SimDisk& disk, uint32_t depth) : disk_(disk) {
    const std::lock_guard lock(disk_.mutex_);
    number_ = disk_.engines_++;
    random_.seed(disk_.options_.seed * 1000 + number_);
    caps_ = {.depth = std::min(depth, disk_.options_.depth_max),
             .block_bytes_max = 1U << 30,
             .memory_slots = disk_.options_.memory_slots,
             .detail = "simulated"};
    slots_.resize(caps_.memory_slots);
  }

  ~SimEngine() override {
    std::array<Completion, 16> drained;
    while (!pending_.empty())
      (void)reap(drained, std::nullopt);
    const std::lock_guard lock(disk_.mutex_);
    for (const Slot& slot : slots_)
      disk_.registered_now_ -= slot.region.bytes;
  }

  [[nodiscard]] const engine::Caps& caps() const noexcept override { return caps_; }

  [[nodiscard]] size_t submit(std::span<const Block> blocks) override {
    const std::lock_guard lock(disk_.mutex_);
    size_t room = std::min<size_t>(blocks.size(), caps_.depth - pending_.size());
    if (chance(disk_.options_.chances.full)) room = std::min<size_t>(room, random_() % (blocks.size() + 1));
    if (disk_.room_ == SimDisk::Room::none) room = 0;
    for (const Block& block : blocks.first(room)) {
      const auto bound = disk_.descriptors_.find(block.descriptor);
      SimIo io = {
          .block = block, .file = bound == disk_.descriptors_.end() ? nullptr : bound->second.file, .engine = number_};
      check(io, bound == disk_.descriptors_.end() ? std::nullopt : std::optional(bound->second.path));
      if (block.memory_slot >= 0 && static_cast<size_t>(block.memory_slot) < slots_.size())
        ++slots_[static_cast<size_t>(block.memory_slot)].in_flight;
      ++disk_.taken_count_;
      if (disk_.options_.keep_log) disk_.taken_.push_back(io);
      pending_.push_back(std::move(io));
    }
    disk_.changed_.notify_all();
    return room;
  }

  [[nodiscard]] size_t reap(std::span<Completion> completions, engine::Deadline deadline) override {
    std::unique_lock lock(disk_.mutex_);
    while (true) {
      size_t count = 0;
      const bool idle = chance(disk_.options_.chances.idle_return);
      // Sometimes one, sometimes all that may complete, in any order.
      size_t wanted = idle ? 0 : random_() % std::max<size_t>(1, std::min(completions.size(), pending_.size())) + 1;
      while (count < wanted && count < completions.size()) {
        const std::optional<size_t> index = pick();
        if (!index) break;
        completions[count++] = complete(*index);
      }
      if (count != 0) disk_.changed_.notify_all();
      if (count != 0 || idle || std::exchange(woken_, false)) return count;
      if (!deadline) {
        disk_.changed_.wait(lock);
      } else if (disk_.changed_.wait_until(lock, *deadline) == std::cv_status::timeout) {
        return 0;
      }
    }
  }

  void wake() noexcept override {
    const std::lock_guard lock(disk_.mutex_);
    woken_ = true;
    disk_.changed_.notify_all();
  }

  [[nodiscard]] int register_memory(uint32_t slot, Region region) override {
    const std::lock_guard lock(disk_.mutex_);
    if (slot >= slots_.size()) return violation(fmt::format("memory slot {} does not exist", slot)), -EINVAL;
    if (slots_[slot].region.bytes != 0) violation(fmt::format("memory slot {} is registered twice", slot));
    if (disk_.registrations_ >= disk_.options_.registrations_max) return -disk_.options_.registration_errno;
    ++disk_.registrations_;
    slots_[slot] = {.region = region};
    disk_.registered_now_ += region.bytes;
    return 0;
  }

  void unregister_memory(uint32_t slot) override {
    const std::lock_guard lock(disk_.mutex_);
    if (slot >= slots_.size() || slots_[slot].region.bytes == 0)
      return violation(fmt::format("memory slot {} is not registered", slot));
    if (slots_[slot].in_flight != 0) violation(fmt::format("memory slot {} is given up with blocks in flight", slot));
    disk_.registered_now_ -= slots_[slot].region.bytes;
    slots_[slot] = {};
  }

 private:
  struct Slot {
    Region region;
    uint32_t in_flight = 0;
  };

  bool chance(uint32_t per_mille) { return per_mille != 0 && random_() % 1000 < per_mille; }

  void violation(std::string text) { disk_.violations_.push_back(std::move(text)); }

  void check(const SimIo& io, std::optional<Path> bound) {
    const Block& block = io.block;
    if (!bound) return violation(fmt::format("descriptor {} is not open", block.descriptor));
    for (const SimIo& other : pending_) {
      if (other.block.cookie == block.cookie) violation(fmt::format("cookie {} is in flight twice", block.cookie));
    }
    if (block.operation == Operation::datasync) return;
    if (*bound != block.path) violation("a block names a path that its descriptor does not take");
    if (block.length_bytes == 0) violation("a block of nothing");
    if (block.path == Path::direct && !aligned(block)) {
      violation(fmt::format("a misaligned direct block: offset {}, length {}, address {}", block.offset_bytes,
                            block.length_bytes, static_cast<const void*>(block.data)));
    }
    if (block.memory_slot == engine::kNotRegistered) return;
    const auto slot = static_cast<size_t>(block.memory_slot);
    const bool inside = slot < slots_.size() && block.data >= slots_[slot].region.data &&
                        block.data + block.length_bytes <= slots_[slot].region.data + slots_[slot].region.bytes;
    if (!inside) violation(fmt::format("a block leaves its memory slot {}", slot));
  }

  bool aligned(const Block& block) const {
    return base::is_aligned(block.offset_bytes, disk_.options_.direct_offset_bytes) &&
           base::is_aligned(block.length_bytes, disk_.options_.direct_offset_bytes) &&
           base::is_aligned(reinterpret_cast<uintptr_t>(block.data), disk_.options_.direct_memory_bytes);
  }

  // A random block among those that may complete now.
  std::optional<size_t> pick() {
    if (disk_.held_ && disk_.allowed_ == 0) return std::nullopt;
    std::vector<size_t> ready;
    for (size_t i = 0; i < pending_.size(); ++i) {
      if (!disk_.stuck_ || !disk_.stuck_(pending_[i])) ready.push_back(i);
    }
    if (ready.empty()) return std::nullopt;
    if (disk_.held_) --disk_.allowed_;
    return ready[random_() % ready.size()];
  }

  Completion complete(size_t index) {
    const SimIo io = std::move(pending_[index]);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
    if (io.block.memory_slot >= 0 && static_cast<size_t>(io.block.memory_slot) < slots_.size())
      --slots_[static_cast<size_t>(io.block.memory_slot)].in_flight;
    const Completion completion = {.cookie = io.block.cookie, .result = outcome(io)};
    const bool passing = completion.result == -EINTR || completion.result == -EAGAIN ||
                         (completion.result == -EINVAL && io.block.path == Path::direct);
    if (!disk_.options_.keep_log) return completion;
    if (completion.result < 0 && !passing)
      disk_.faults_.push_back({.io = io, .errno_value = static_cast<int>(-completion.result)});
    disk_.completed_.push_back(io);
    return completion;
  }

  int64_t outcome(const SimIo& io) {
    const Block& block = io.block;
    const SimChances& chances = disk_.options_.chances;
    uint64_t length = block.length_bytes;
    if (disk_.script_) {
      if (const std::optional<int64_t> scripted = disk_.script_(io)) {
        if (*scripted < 0) return *scripted;
        length = std::min(length, static_cast<uint64_t>(*scripted));
        if (length == 0) return 0;
      }
    }
    if (!io.file) return -EBADF;
    if (chance(chances.interrupted)) return -EINTR;
    if (chance(chances.try_again)) return -EAGAIN;
    if (chance(chances.cancelled)) return -ECANCELED;
    if (chance(chances.io_error)) return -EIO;
    if (block.operation == Operation::datasync) return 0;
    if (block.path == Path::direct && (io.file->refuses_direct_transfers || !aligned(block))) return -EINVAL;
    if (block.operation == Operation::write && chance(chances.no_space)) return -ENOSPC;
    if (length > 1 && chance(chances.short_transfer)) {
      length = random_() % length + 1;
      // The kernel cuts direct I/O at sectors, a file's end apart.
      if (block.path == Path::direct && length > disk_.options_.direct_offset_bytes && random_() % 2 == 0)
        length = base::align_down(length, disk_.options_.direct_offset_bytes);
    }
    return block.operation == Operation::read ? read(*io.file, block, length) : write(*io.file, block, length);
  }

  static int64_t until_bad(const SimFile& file, uint64_t offset, uint64_t& length) {
    for (const SimRange& range : file.bad) {
      if (range.begin <= offset && offset < range.end) return -EIO;
      if (range.begin > offset) length = std::min(length, range.begin - offset);
    }
    return 0;
  }

  static int64_t read(const SimFile& file, const Block& block, uint64_t length) {
    if (block.offset_bytes >= file.bytes.size()) return 0;
    length = std::min(length, file.bytes.size() - block.offset_bytes);
    if (const int64_t error = until_bad(file, block.offset_bytes, length)) return error;
    std::memcpy(block.data, file.bytes.data() + block.offset_bytes, length);
    return static_cast<int64_t>(length);
  }

  static int64_t write(SimFile& file, const Block& block, uint64_t length) {
    if (block.offset_bytes >= file.capacity) return -ENOSPC;
    length = std::min(length, file.capacity - block.offset_bytes);
    if (const int64_t error = until_bad(file, block.offset_bytes, length)) return error;
    if (file.bytes.size() < block.offset_bytes + length) file.bytes.resize(block.offset_bytes + length);
    std::memcpy(file.bytes.data() + block.offset_bytes, block.data, length);
    return static_cast<int64_t>(length);
  }

  SimDisk& disk_;
  uint32_t number_ = 0;
  std::mt19937_64 random_;
  engine::Caps caps_;
  std::vector<Slot> slots_;
  std::vector<SimIo> pending_;
  bool woken_ = false;
};

engine::EngineFactory SimDisk::factory() {
  return [this](const engine::EngineOptions& options) -> Result<std::unique_ptr<engine::Engine>> {
    return std::make_unique<SimEngine>(*this, options.depth);
  };
}

void SimDisk::set_script(Script script) {
  const std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

void SimDisk::set_stuck(Stuck stuck) {
  const std::lock_guard lock(mutex_);
  stuck_ = std::move(stuck);
  changed_.notify_all();
}

void SimDisk::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
  allowed_ = 0;
}

void SimDisk::let(uint32_t completions) {
  const std::lock_guard lock(mutex_);
  allowed_ += completions;
  changed_.notify_all();
}

void SimDisk::set_room(Room room) {
  const std::lock_guard lock(mutex_);
  room_ = room;
}

void SimDisk::release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

bool SimDisk::wait_for_taken(size_t count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return taken_count_ >= count; });
}

std::vector<SimIo> SimDisk::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

std::vector<SimIo> SimDisk::completed() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

std::vector<SimDisk::Fault> SimDisk::faults() const {
  const std::lock_guard lock(mutex_);
  return faults_;
}

std::vector<std::string> SimDisk::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

uint64_t SimDisk::registered_now() const {
  const std::lock_guard lock(mutex_);
  return registered_now_;
}

void SimDisk::bind(int descriptor, std::shared_ptr<SimFile> file, engine::Path path) {
  const std::lock_guard lock(mutex_);
  descriptors_[descriptor] = {.file = std::move(file), .path = path};
}

std::shared_ptr<SimFile> SimDisk::file_of(int descriptor) const {
  const std::lock_guard lock(mutex_);
  const auto bound = descriptors_.find(descriptor);
  return bound == descriptors_.end() ? nullptr : bound->second.file;
}

}  // namespace headrace::test
