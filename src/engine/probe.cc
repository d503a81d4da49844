// SPDX-License-Identifier: Apache-2.0
// See probe.h. The bytes come from a memory file, so that no disk and no folder is needed.
// The engine lives and dies on one fresh thread: an io_uring belongs to the thread that made it.
// Owns the file and the thread until the verdict.
#include "engine/probe.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <exception>
#include <thread>

#include "engine/registry.h"
#include "os/error.h"
#include "os/fd.h"
#include "os/thread.h"

namespace headrace::engine {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr std::array<char, 16> kPattern = {'h', 'e', 'a', 'd', 'r', 'a', 'c', 'e', ' ', 'p', 'r', 'o', 'b', 'e'};

using Bytes = std::array<char, kPattern.size()>;

// One read on each path: Linux AIO takes the two in different ways. `bytes` must outlive the engine.
Status round_trip(Engine& engine, EngineKind kind, Bytes& bytes) {
  const os::Fd file(::memfd_create("headrace-probe", MFD_CLOEXEC));
  if (!file.is_open()) return std::unexpected(os::system_error("memfd_create", {}, errno));
  if (::pwrite(file.get(), kPattern.data(), kPattern.size(), 0) != ssize_t{kPattern.size()}) {
    return std::unexpected(os::system_error("write", "memfd", errno));
  }
  for (Path path : {Path::direct, Path::buffered}) {
    bytes = {};
    const Block block = {.cookie = 7,
                         .operation = Operation::read,
                         .path = path,
                         .descriptor = file.get(),
                         .data = reinterpret_cast<std::byte*>(bytes.data()),
                         .length_bytes = kPattern.size()};
    const Clock::time_point deadline = Clock::now() + kPatience;
    std::array<Completion, 1> done = {};
    size_t count = engine.submit({&block, 1});
    if (count == 1) {
      do {
        count = engine.reap(done, deadline);
      } while (count == 0 && Clock::now() < deadline);
    }
    const bool moved = kind == EngineKind::null || bytes == kPattern;
    if (count == 1 && done[0].cookie == 7 && done[0].result == int64_t{kPattern.size()} && moved) continue;
    Error error = {.code = ErrorCode::unavailable, .operation = "read", .path = "memfd"};
    if (count == 1 && done[0].result < 0) error.errno_value = static_cast<int>(-done[0].result);
    error.detail = "the engine was set up, but a read of a few bytes through it did not come back right";
    return std::unexpected(std::move(error));
  }
  return {};
}

EngineInfo verdict(EngineKind kind) {
  Bytes bytes = {};
  auto made = factory_for(kind)({.depth = 8});
  if (!made) return {.kind = kind, .available = false, .reason = made.error().message()};
  const Status moved = round_trip(**made, kind, bytes);
  if (!moved) return {.kind = kind, .available = false, .reason = moved.error().message()};
  return {.kind = kind, .available = true, .reason = (*made)->caps().detail};
}

}  // namespace

EngineInfo probe(EngineKind kind) {
  EngineInfo info = {.kind = kind, .available = false, .reason = {}};
  Result<std::thread> thread = os::start_thread("headrace-probe", [&info, kind] {
    try {
      info = verdict(kind);
    } catch (const std::exception& failure) {
      info.reason = failure.what();
    }
  });
  if (!thread) {
    info.reason = thread.error().message();
    return info;
  }
  thread->join();
  return info;
}

}  // namespace headrace::engine
