// SPDX-License-Identifier: Apache-2.0
// See uring_setup.h.
// The thread that calls it must be the one that uses the ring.
// Owns the ring.
#include "engine/uring_setup.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "os/fd.h"

namespace headrace::engine {
namespace {

constexpr uint32_t kDepthLeast = 8;         // less than this is not tried when memory is short
constexpr uint32_t kMemorySlotsMin = 1024;  // costs the kernel 8 KiB
constexpr uint32_t kInternalEntries = 1;    // the wake-up read
constexpr int64_t kPatienceSeconds = 10;
constexpr int kTriesMax = 100;

struct FlagSet {
  unsigned flags;
  std::string_view name;
};

// Best first. With DEFER_TASKRUN completions run only when the owner waits, so nothing interrupts it (Linux 6.1);
// COOP_TASKRUN saves the interrupts alone (5.19). TASKRUN_FLAG lets a poll see without a system call that nothing is done.
constexpr std::array kFlagSets = {
    FlagSet{
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        "single issuer, deferred task work"},
    FlagSet{IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, "cooperative task work"},
    FlagSet{0, "plain ring"},
};

constexpr std::array kOperations = {IORING_OP_NOP,        IORING_OP_READ,        IORING_OP_WRITE,
                                    IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_FSYNC};

Error unavailable(std::string_view operation, int errno_value, std::string detail) {
  return {.code = ErrorCode::unavailable,
          .errno_value = errno_value,
          .operation = std::string(operation),
          .detail = std::move(detail)};
}

// 0 when the file is not there (before Linux 6.6) or says 0.
int read_io_uring_disabled() {
  const os::Fd file(::open("/proc/sys/kernel/io_uring_disabled", O_RDONLY | O_CLOEXEC));
  char digit = '0';
  if (!file.is_open() || ::read(file.get(), &digit, 1) != 1) return 0;
  return digit - '0';
}

std::string explain(int errno_value) {
  switch (errno_value) {
    case EPERM:
    case EACCES:
      if (const int disabled = read_io_uring_disabled(); disabled != 0) {
        return fmt::format(
            "the administrator switched io_uring off (kernel.io_uring_disabled is {}); "
            "`sysctl kernel.io_uring_disabled=0` allows it again",
            disabled);
      }
      return "a seccomp profile or security policy forbids io_uring, as the default profiles of containers do; run "
             "with "
             "a profile that allows io_uring_setup, io_uring_enter and io_uring_register";
    case ENOSYS:
      return "this kernel has no io_uring: it is older than 5.1, built without it, or a sandbox or seccomp profile "
             "hides "
             "it; use another engine, or a profile that allows io_uring_setup, io_uring_enter and io_uring_register";
    case ENOMEM:
      return "the kernel has no memory for the ring, or the limit on locked memory is used up (kernels before 5.12 "
             "count "
             "rings); raise it with `ulimit -l` or ask for a smaller depth";
    case EMFILE:
    case ENFILE: return "too many files are open; raise the limit with `ulimit -n`";
    case EINVAL: return "this kernel knows none of the set-up flags needed; Linux 5.11 or later is";
    default: return "io_uring cannot be set up here; use another engine";
  }
}

// Submits what is queued and waits for one completion, but not for ever. Returns its result, or a negative errno.
int complete_one(io_uring& ring) {
  __kernel_timespec patience = {.tv_sec = kPatienceSeconds, .tv_nsec = 0};
  constexpr timespec kPause = {.tv_sec = 0, .tv_nsec = 1'000'000};
  io_uring_cqe* completion = nullptr;
  int result = 0;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    result = io_uring_submit_and_wait_timeout(&ring, &completion, 1, &patience, nullptr);
    if (completion != nullptr) break;
    if (result == -EAGAIN || result == -EBUSY) {  // short of memory for the moment
      (void)::nanosleep(&kPause, nullptr);
    } else if (result < 0 && result != -EINTR) {
      break;
    }
  }
  if (completion == nullptr) return result < 0 ? result : -ETIME;
  result = completion->res;
  io_uring_cqe_seen(&ring, completion);
  return result;
}

Status try_operations(io_uring& ring) {
  constexpr unsigned kCount = 256;  // the most that the kernel can answer for
  alignas(io_uring_probe) std::array<std::byte, sizeof(io_uring_probe) + kCount * sizeof(io_uring_probe_op)> memory{};
  auto* probe = reinterpret_cast<io_uring_probe*>(memory.data());
  if (const int result = io_uring_register_probe(&ring, probe, kCount); result < 0) {
    return std::unexpected(unavailable("io_uring_register", -result, explain(-result)));
  }
  for (int operation : kOperations) {
    if (io_uring_opcode_supported(probe, operation) == 0) {
      return std::unexpected(
          unavailable("io_uring_register", EOPNOTSUPP, fmt::format("io_uring here lacks operation {}", operation)));
    }
  }
  return {};
}

// Set-up proves little: a profile may forbid io_uring_enter, a sandbox may fail each read.
Status try_round_trip(io_uring& ring) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring);
  io_uring_prep_nop(entry);
  if (const int result = complete_one(ring); result < 0) {
    return std::unexpected(unavailable("io_uring_enter", -result, explain(-result)));
  }
  os::Fd file(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    file = os::Fd(::memfd_create("headrace-ring", MFD_CLOEXEC));
    if (!file.is_open() || ::ftruncate(file.get(), 64) != 0) return {};  // nothing to read: the NOP must do
  }
  std::array<std::byte, 64> bytes;
  bytes.fill(std::byte{0xff});
  entry = io_uring_get_sqe(&ring);
  io_uring_prep_read(entry, file.get(), bytes.data(), bytes.size(), 0);
  const int result = complete_one(ring);
  const bool zeros = std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  if (result == int{bytes.size()} && zeros) return {};
  return std::unexpected(unavailable("read", result < 0 ? -result : 0,
                                     "io_uring was set up, but a read through it failed; use another engine"));
}

}  // namespace

Ring::~Ring() {
  if (is_open) io_uring_queue_exit(&ring);
}

Status Ring::open(uint32_t depth_wanted) {
  depth = depth_wanted;
  size_t choice = 0;
  for (;;) {
    io_uring_params params = {};
    params.flags = kFlagSets[choice].flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    params.cq_entries = 2 * (depth + kInternalEntries);
    const int result = io_uring_queue_init_params(depth + kInternalEntries, &ring, &params);
    if (result == 0) {
      is_open = true;
      if ((params.features & IORING_FEAT_EXT_ARG) == 0) {
        return std::unexpected(unavailable("io_uring_setup", ENOSYS, "io_uring here is older than Linux 5.11"));
      }
      break;
    }
    if (result == -EINVAL && choice + 1 < kFlagSets.size()) {
      ++choice;
    } else if (result == -ENOMEM && depth > kDepthLeast) {
      depth = std::max(depth / 2, kDepthLeast);
    } else {
      return std::unexpected(unavailable("io_uring_setup", -result, explain(-result)));
    }
  }
  if (Status tried = try_operations(ring); !tried) return tried;
  if (Status tried = try_round_trip(ring); !tried) return tried;
  // Enough for every block in flight to have one and for the idle to keep theirs. Linux 5.19.
  const uint32_t slots = std::max(kMemorySlotsMin, 2 * depth);
  if (io_uring_register_buffers_sparse(&ring, slots) == 0) memory_slots = slots;
  detail = fmt::format("{}, {}", kFlagSets[choice].name,
                       memory_slots > 0 ? "registered memory" : "no registered memory (Linux 5.19 has it)");
  return {};
}

}  // namespace headrace::engine
