// SPDX-License-Identifier: Apache-2.0
// headrace_copy_loop SOURCE TARGET [--block=4194304] [--depth=16]
// Copies a file as a bare loop would, to show what a disk gives when it is read and written at once: io_uring, direct,
// registered buffers on huge pages, each slot written as soon as it is read; TARGET preallocated and synced. Nothing of
// headrace is in it. Prints a JSON object: bytes, seconds, cpu_seconds.
// One thread. The program owns everything it uses.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <liburing.h>

#include "bench/micro/bench_util.h"

namespace {

using headrace::bench::fail;
using headrace::bench::process_cpu_seconds;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kSector = 4096;

struct Settings {
  std::string source;
  std::string target;
  uint64_t block_bytes = 4 << 20;
  uint64_t depth = 16;
};

// A buffer and what it is about.
struct Slot {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool writing = false;
};

Settings parse(int count, char** words) {
  Settings settings;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    bool known = false;
    const auto number = [&](std::string_view name, uint64_t& value) {
      if (!word.starts_with(name)) return;
      const auto [end, error] = std::from_chars(word.data() + name.size(), word.data() + word.size(), value);
      known = error == std::errc() && end == word.data() + word.size() && value > 0;
    };
    number("--block=", settings.block_bytes);
    number("--depth=", settings.depth);
    if (known) continue;
    if (word.starts_with("-"))
      fail("headrace_copy_loop: no such option, or not a positive number: " + std::string(word));
    (settings.source.empty() ? settings.source : settings.target) = word;
  }
  if (settings.target.empty()) fail("headrace_copy_loop: SOURCE or TARGET is missing");
  if (settings.block_bytes % kSector != 0) fail("headrace_copy_loop: --block must be a multiple of 4096");
  return settings;
}

// The result of a system call, or the end.
int checked(int result, const char* call) {
  if (result < 0) fail(std::string("headrace_copy_loop: ") + call + ": " + std::strerror(errno));
  return result;
}

class CopyLoop {
 public:
  explicit CopyLoop(const Settings& settings)
      : settings_(settings),
        slots_(settings.depth),
        source_(checked(::open(settings.source.c_str(), O_RDONLY | O_DIRECT), "open SOURCE")),
        target_(checked(::open(settings.target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT, 0600), "open TARGET")) {
    struct stat status = {};
    checked(::fstat(source_, &status), "fstat");
    size_ = static_cast<uint64_t>(status.st_size);
    const uint64_t memory_bytes = settings.depth * settings.block_bytes;
    void* const memory = ::mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("headrace_copy_loop: mmap");
    (void)::madvise(memory, memory_bytes, MADV_HUGEPAGE);
    std::memset(memory, 1, memory_bytes);
    memory_ = static_cast<std::byte*>(memory);
    if (::io_uring_queue_init(static_cast<unsigned>(settings.depth), &ring_, 0) != 0)
      fail("headrace_copy_loop: io_uring_setup");
    const iovec whole = {memory, memory_bytes};
    if (::io_uring_register_buffers(&ring_, &whole, 1) != 0) fail("headrace_copy_loop: io_uring_register_buffers");
  }

  // Returns the bytes of the file.
  uint64_t run() {
    if (const int error = ::posix_fallocate(target_, 0, static_cast<off_t>(size_)); error != 0)
      fail(std::string("headrace_copy_loop: posix_fallocate: ") + std::strerror(error));
    uint64_t unfinished = 0;
    for (size_t index = 0; index < slots_.size(); ++index)
      unfinished += read_next(index) ? 1U : 0U;
    while (unfinished > 0) {
      if (::io_uring_submit_and_wait(&ring_, 1) < 0) fail("headrace_copy_loop: io_uring_enter");
      io_uring_cqe* entry = nullptr;
      while (::io_uring_peek_cqe(&ring_, &entry) == 0) {
        const auto index = static_cast<size_t>(::io_uring_cqe_get_data64(entry));
        const int result = entry->res;
        ::io_uring_cqe_seen(&ring_, entry);
        if (!advance(index, result)) --unfinished;
      }
    }
    if (size_ % kSector != 0) checked(::ftruncate(target_, static_cast<off_t>(size_)), "ftruncate");
    checked(::fdatasync(target_), "fdatasync");
    return size_;
  }

 private:
  // A finished read is written, a finished write makes room for the next read. False when the slot has no more to do.
  bool advance(size_t index, int result) {
    Slot& slot = slots_[index];
    const uint64_t wanted = slot.writing ? whole_sectors(slot.bytes) : slot.bytes;
    if (result < 0) fail(std::string("headrace_copy_loop: ") + std::strerror(-result));
    if (static_cast<uint64_t>(result) != wanted) fail("headrace_copy_loop: a short transfer");
    if (slot.writing) return read_next(index);
    slot.writing = true;
    io_uring_sqe* const entry = next_entry();
    ::io_uring_prep_write_fixed(entry, target_, at(index), static_cast<unsigned>(whole_sectors(slot.bytes)),
                                slot.offset, 0);
    ::io_uring_sqe_set_data64(entry, index);
    return true;
  }

  bool read_next(size_t index) {
    if (next_ >= size_) return false;
    slots_[index] = {.offset = next_, .bytes = std::min(settings_.block_bytes, size_ - next_), .writing = false};
    next_ += settings_.block_bytes;
    io_uring_sqe* const entry = next_entry();
    ::io_uring_prep_read_fixed(entry, source_, at(index), static_cast<unsigned>(settings_.block_bytes),
                               slots_[index].offset, 0);
    ::io_uring_sqe_set_data64(entry, index);
    return true;
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    if (entry == nullptr) fail("headrace_copy_loop: the ring is full");
    return entry;
  }

  std::byte* at(size_t index) const { return memory_ + index * settings_.block_bytes; }
  static uint64_t whole_sectors(uint64_t bytes) { return (bytes + kSector - 1) / kSector * kSector; }

  Settings settings_;
  std::vector<Slot> slots_;
  int source_;
  int target_;
  uint64_t size_ = 0;
  uint64_t next_ = 0;
  std::byte* memory_ = nullptr;
  io_uring ring_ = {};
};

}  // namespace

int main(int count, char** words) {
  CopyLoop loop(parse(count, words));
  const double cpu_before = process_cpu_seconds();
  const Clock::time_point start = Clock::now();
  const uint64_t bytes = loop.run();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf(R"({"bytes": %llu, "seconds": %.6f, "cpu_seconds": %.6f})"
              "\n",
              static_cast<unsigned long long>(bytes), seconds, process_cpu_seconds() - cpu_before);
  return 0;
}
