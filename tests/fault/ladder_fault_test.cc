// SPDX-License-Identifier: Apache-2.0
// What is refused by the kernel on the way to an engine: the next rung is taken, one record says so, bytes are right.
// Each case runs in a child, whose limits and filters die with it.
#include <fcntl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>

#include <gtest/gtest.h>

#include <headrace/headrace.h>

#include "tests/support/child_process.h"
#include "tests/support/files.h"
#include "tests/support/random_load.h"

namespace headrace {
namespace {

using namespace headrace::test;

constexpr uint64_t kBytes = (3 << 20) + 77;

// Writes and reads a file with the engine, and says whether the bytes are right.
bool round_trips(Handle& handle, const std::string& path) {
  const std::vector<std::byte> source = pattern(kBytes);
  std::vector<std::byte> target(kBytes);
  const Result<File> file = File::open(path, FileMode::truncate);
  if (!file) return false;
  if (handle.write(*file, {.source = {source.data(), kBytes, {}}})->result().value_or(0) != kBytes) return false;
  if (handle.read(*file, {.target = {target.data(), kBytes, {}}, .cache = CacheMode::bypass})->result().value_or(0) !=
      kBytes)
    return false;
  return source == target;
}

class LadderFault : public testing::Test {
 protected:
  TestFolder folder_;
};

TEST_F(LadderFault, WithoutIoUringAutoTakesTheNextEngineAndSaysSoOnce) {
  for (const int errno_value : {EPERM, ENOSYS, ENOMEM, EMFILE}) {
    const int status = run_in_child([&] {
      if (!deny_system_call({.system_call = SYS_io_uring_setup, .errno_value = errno_value})) return 77;
      int records = 0;
      set_log_sink([&](const LogRecord&) { ++records; });
      Result<Handle> handle = Handle::create();
      if (!handle) return 1;
      if (handle->facts().engine != EngineKind::aio && handle->facts().engine != EngineKind::posix) return 2;
      if (handle->facts().engine_detail.find("uring") == std::string::npos) return 3;
      flush_dispatcher();
      if (records != 1) return 4;
      if (!round_trips(*handle, folder_.file("f"))) return 5;
      const Result<Handle> named = Handle::create({.engine = EngineKind::uring});
      if (named) return 6;
      if (named.error().message().empty() || named.error().detail.empty()) return 7;
      for (const EngineInfo& info : probe_engines()) {
        if (info.kind == EngineKind::uring && (info.available || info.reason.empty())) return 8;
        if (info.kind == EngineKind::posix && !info.available) return 9;
      }
      return handle->close() ? 0 : 10;
    });
    if (status == 77) GTEST_SKIP() << "seccomp filters cannot be had here";
    EXPECT_EQ(status, 0) << errno_name(errno_value);
  }
}

TEST_F(LadderFault, WithoutIoUringAndAioAutoTakesThreads) {
  const int status = run_in_child([&] {
    if (!deny_system_call({.system_call = SYS_io_uring_setup, .errno_value = EPERM}) ||
        !deny_system_call({.system_call = SYS_io_setup, .errno_value = EAGAIN}))
      return 77;
    Result<Handle> handle = Handle::create();
    if (!handle) return 1;
    if (handle->facts().engine != EngineKind::posix) return 2;
    if (!round_trips(*handle, folder_.file("f"))) return 3;
    const Result<Handle> named = Handle::create({.engine = EngineKind::aio});
    if (named) return 4;
    if (named.error().message().find("EAGAIN") == std::string::npos) return 5;
    return handle->close() ? 0 : 6;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be had here";
  EXPECT_EQ(status, 0);
}

TEST_F(LadderFault, RefusedRegistrationCostsNothingElse) {
  const int status = run_in_child([&] {
    if (!deny_system_call({.system_call = SYS_io_uring_register, .errno_value = ENOMEM})) return 77;
    Result<Handle> handle = Handle::create();
    if (!handle) return 1;
    if (!round_trips(*handle, folder_.file("f"))) return 2;
    const Buffer buffer = *Buffer::create(1 << 20);
    const Transfer transfer = *handle->read(*File::open(folder_.file("f"), FileMode::read),
                                            {.target = buffer.region(), .cache = CacheMode::bypass});
    if (!transfer.result()) return 3;
    if (transfer.route()->registered_bytes != 0) return 4;
    return handle->close() ? 0 : 5;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be had here";
  EXPECT_EQ(status, 0);
}

TEST_F(LadderFault, DeepQueuesOfManyWorkersStillWork) {
  for (const EngineKind engine : {EngineKind::uring, EngineKind::aio, EngineKind::posix}) {
    Result<Handle> handle = Handle::create({.engine = engine, .workers = 8, .queue_depth = 4096});
    if (!handle) continue;  // a named limit of the system
    EXPECT_TRUE(round_trips(*handle, folder_.file("f"))) << engine_name(engine);
    EXPECT_TRUE(handle->close().has_value());
  }
}

TEST_F(LadderFault, AioBeyondTheSystemsLimitDegradesOrNamesIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const char* const limit = "/proc/sys/fs/aio-max-nr";
  std::string before;
  std::ifstream(limit) >> before;
  if (before.empty() || !(std::ofstream(limit) << "64" << std::flush))
    GTEST_SKIP() << "fs.aio-max-nr cannot be set here";
  Result<Handle> handle = Handle::create({.engine = EngineKind::aio, .workers = 4, .queue_depth = 1024});
  const Result<Handle> chosen = Handle::create({.workers = 4});
  std::ofstream(limit) << before << std::flush;
  EXPECT_TRUE(chosen.has_value());
  if (handle) {
    EXPECT_TRUE(round_trips(*handle, folder_.file("f")));
  } else {
    EXPECT_NE(handle.error().message().find("aio-max-nr"), std::string::npos) << handle.error().message();
  }
}

TEST_F(LadderFault, ThreadsThatCannotBeHadAreAnErrorAndNoHang) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs another user id";
  const int status = run_in_child([&] {
    if (!deny_system_call({.system_call = SYS_clone3, .errno_value = EAGAIN}) ||
        !deny_system_call({.system_call = SYS_clone, .errno_value = EAGAIN}))
      return 77;
    const Result<Handle> handle = Handle::create();
    if (handle) return 1;
    return handle.error().errno_value == EAGAIN ? 0 : 2;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be had here";
  EXPECT_EQ(status, 0);
}

TEST_F(LadderFault, MemoryThatCannotBeHadIsAnError) {
  EXPECT_EQ(Buffer::create(uint64_t{1} << 60).error().errno_value, ENOMEM);
  EXPECT_EQ(Buffer::create(UINT64_MAX).error().errno_value, ENOMEM);
  const Result<Buffer> reserved = Buffer::create(uint64_t{1} << 40, {.pages = PageKind::reserved});
  EXPECT_FALSE(reserved.has_value());
}

}  // namespace
}  // namespace headrace
