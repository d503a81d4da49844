// SPDX-License-Identifier: Apache-2.0
// The whole report on real folders: verdicts from bytes, faults named where they are, nothing left behind.
// Limits, filters and other users are staged in children, with which they die.
#include <headrace/report.h>

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "os/file_system.h"
#include "tests/support/child_process.h"
#include "tests/support/files.h"

namespace headrace {
namespace {

using namespace headrace::test;

const EngineReport* engine_of(const FolderReport& folder, EngineKind kind) {
  for (const EngineReport& engine : folder.engines) {
    if (engine.engine == kind) return &engine;
  }
  return nullptr;
}

class Report : public testing::Test {
 protected:
  static MachineReport report(const std::vector<std::string>& folders, const ReportOptions& options = {}) {
    Result<MachineReport> made = report_machine(folders, options);
    EXPECT_TRUE(made) << made.error().message();
    return made ? *std::move(made) : MachineReport{};
  }
  TestFolder folder_;
};

TEST_F(Report, WithoutFoldersTellsOfTheMachineAlone) {
  const MachineReport machine = report({});
  EXPECT_EQ(machine.kernel.name, "Linux");
  EXPECT_NE(machine.kernel.release, "");
  EXPECT_GE(machine.processors.online, 1U);
  EXPECT_GE(machine.processors.allowed, 1U);
  EXPECT_GT(machine.memory.total_bytes, machine.memory.available_bytes);
  EXPECT_GE(machine.memory.page_bytes, 4096U);
  ASSERT_EQ(machine.engines.size(), 3U);
  EXPECT_TRUE(machine.engines[2].available) << machine.engines[2].reason;
  EXPECT_TRUE(machine.folders.empty());
}

TEST_F(Report, EveryEngineThatCanBeSetUpBringsItsBytesBackRight) {
  const MachineReport machine = report({folder_.path()});
  ASSERT_EQ(machine.folders.size(), 1U);
  const FolderReport& folder = machine.folders[0];
  ASSERT_FALSE(folder.error) << folder.error->message();
  EXPECT_TRUE(folder.usable());
  ASSERT_EQ(folder.engines.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    const EngineReport& engine = folder.engines[i];
    EXPECT_EQ(engine.engine, machine.engines[i].kind);
    if (!machine.engines[i].available) continue;
    EXPECT_NE(engine.verdict, Verdict::failed) << engine.why;
    ASSERT_EQ(engine.round_trips.size(), 3U);
    for (const RoundTrip& trip : engine.round_trips) {
      EXPECT_TRUE(trip.bytes_right) << trip.shape;
      EXPECT_EQ(trip.write.direct_bytes + trip.write.buffered_bytes, trip.length_bytes) << trip.shape;
      EXPECT_EQ(trip.read.direct_bytes + trip.read.buffered_bytes, trip.length_bytes) << trip.shape;
    }
  }
}

TEST_F(Report, LeavesNothingBehindAndTakesNoLongerThanItSays) {
  const size_t descriptors = open_descriptors();
  const auto begin = std::chrono::steady_clock::now();
  const MachineReport machine = report({folder_.path(), folder_.path()});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));  // 1 s where nobody else uses the disk
  EXPECT_EQ(machine.folders.size(), 2U);
  EXPECT_EQ(folder_.entries(), 0U);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST_F(Report, WhatIsWrongWithOneFolderDoesNotStopTheOthers) {
  write_file(folder_.file("file"), {});
  const MachineReport machine = report({folder_.file("missing"), folder_.file("file"), "", folder_.path()});
  ASSERT_EQ(machine.folders.size(), 4U);
  constexpr int kErrnos[] = {ENOENT, ENOTDIR, ENOENT};
  for (size_t i = 0; i < 3; ++i) {
    const FolderReport& folder = machine.folders[i];
    EXPECT_FALSE(folder.usable());
    ASSERT_TRUE(folder.error) << folder.path;
    EXPECT_EQ(folder.error->errno_value, kErrnos[i]) << folder.path;
    EXPECT_EQ(folder.error->path, folder.path);
    EXPECT_NE(folder.error->detail, "") << folder.path;
    EXPECT_TRUE(folder.engines.empty());
  }
  EXPECT_TRUE(machine.folders[3].usable());
}

TEST_F(Report, StopsWhenAskedAndLeavesNothing) {
  int asked = 0;
  const std::vector<std::string> folders = {folder_.path()};
  for (const int after : {0, 1, 2}) {
    asked = 0;
    const Result<MachineReport> made =
        report_machine(folders, {.progress = {.show = {}, .interrupted = [&] { return asked++ >= after; }}});
    ASSERT_FALSE(made) << after;
    EXPECT_EQ(made.error().code, ErrorCode::interrupted);
    EXPECT_EQ(folder_.entries(), 0U);
  }
}

TEST_F(Report, ShowsWhatItIsAt) {
  std::vector<std::string> steps;
  const ReportOptions options = {
      .progress = {.show = [&](const ProgressNow& now) { steps.emplace_back(now.what); }, .interrupted = {}}};
  (void)report({folder_.path()}, options);
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_EQ(steps[1], "trying uring in " + folder_.path());
}

TEST_F(Report, AsJsonHoldsWhatIsInItWhateverTheBytesOfAName) {
  const std::string odd = folder_.file("\xff\x1b[31m \"quoted\"");
  std::filesystem::create_directory(odd);
  const MachineReport machine = report({odd, folder_.file("missing")});
  const nlohmann::json json = nlohmann::json::parse(to_json(machine));
  EXPECT_EQ(json["schema"], "headrace.report");
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["machine"]["kernel"]["release"], machine.kernel.release);
  ASSERT_EQ(json["folders"].size(), 2U);
  EXPECT_EQ(json["folders"][0]["usable"], machine.folders[0].usable());
  EXPECT_EQ(json["folders"][0]["engines"][2]["engine"], "posix");
  EXPECT_EQ(json["folders"][0]["engines"][2]["verdict"], "works");
  EXPECT_EQ(json["folders"][0]["engines"][2]["round_trips"][0]["bytes_right"], true);
  EXPECT_EQ(json["folders"][1]["error"]["errno"], "ENOENT");
  EXPECT_TRUE(json["folders"][1]["direct_io"]["accepted"].is_null());
}

// A file system that takes bytes for the device and puts them elsewhere: what an engine reports is not believed.
class TwoFaced : public os::FileSystem {
 public:
  explicit TwoFaced(std::string other) : other_(std::move(other)) {}
  Result<os::Fd> reopen_direct(const os::OpenedFile&) override {
    return os::Fd(::open(other_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }
  os::DirectAlignment direct_alignment(int) override {
    return {.memory_bytes = 512, .offset_bytes = 512, .told = true, .refused = false};
  }

 private:
  std::string other_;
};

TEST_F(Report, BytesThatComeBackWrongAreAFailureThatNamesTheOffset) {
  const TestFolder elsewhere;
  TwoFaced system(elsewhere.file("other"));
  os::replace_file_system(&system);
  const MachineReport machine = report({folder_.path()});
  os::replace_file_system(nullptr);
  const FolderReport& folder = machine.folders.at(0);
  if (folder.file_system.in_memory) GTEST_SKIP() << "needs a folder on a disk";
  EXPECT_FALSE(folder.usable());
  for (const EngineReport& engine : folder.engines) {
    EXPECT_EQ(engine.verdict, Verdict::failed) << engine_name(engine.engine);
    if (engine.round_trips.empty()) continue;
    const RoundTrip& last = engine.round_trips.back();
    EXPECT_EQ(last.shape, "ragged") << "whose edges went to the right file, and came back from the wrong one";
    EXPECT_FALSE(last.bytes_right);
    ASSERT_TRUE(last.error);
    EXPECT_EQ(last.error->code, ErrorCode::corrupt);
    EXPECT_EQ(last.error->offset_bytes, 12'345U);
    EXPECT_NE(engine.remedy, "");
  }
}

TEST_F(Report, WithoutIoUringTheOthersAreTriedAndItSaysWhatToDo) {
  const int status = run_in_child([&] {
    if (!deny_system_call({.system_call = SYS_io_uring_setup, .errno_value = EPERM})) return 77;
    const MachineReport machine = report({folder_.path()});
    const EngineReport* uring = engine_of(machine.folders.at(0), EngineKind::uring);
    if (uring == nullptr || uring->verdict != Verdict::failed) return 1;
    if (uring->why.find("EPERM") == std::string::npos || uring->remedy.empty()) return 2;
    if (!uring->round_trips.empty()) return 3;
    if (!machine.folders[0].usable()) return 4;
    if (machine.engines.at(0).available || machine.engines[0].reason.find("EPERM") == std::string::npos) return 5;
    return HasFailure() ? 6 : 0;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be had here";
  EXPECT_EQ(status, 0);
}

TEST_F(Report, WhereFilesWithoutANameCannotBeHadOneIsMadeAndTakenAway) {
  const int status = run_in_child([&] {
    // Of all flags of open() only those of O_TMPFILE are so large.
    if (!deny_system_call({.system_call = SYS_openat, .errno_value = EOPNOTSUPP, .argument = 2, .at_least = 0x400000}))
      return 77;
    if (::open(folder_.path().c_str(), O_TMPFILE | O_RDWR, 0600) >= 0) return 1;
    const MachineReport machine = report({folder_.path()});
    if (!machine.folders.at(0).usable()) return 2;
    if (folder_.entries() != 0) return 3;
    return HasFailure() ? 4 : 0;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be had here";
  EXPECT_EQ(status, 0);
}

TEST_F(Report, OfAUserWithLittleLockedMemorySaysThatAndHowMuch) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  std::filesystem::create_directory(folder_.file("open"));
  ASSERT_EQ(::chmod(folder_.file("open").c_str(), 0777), 0);
  const int status = run_in_child([&] {
    const rlimit limit = {.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || !become_nobody_in(folder_.path())) return 77;
    const MachineReport machine = report({"open", ".", "/root/x"});
    if (machine.locked_memory.exempt || machine.locked_memory.limit_bytes != uint64_t{64} << 10) return 1;
    const EngineReport* uring = engine_of(machine.folders.at(0), EngineKind::uring);
    if (machine.engines.at(0).available) {
      if (uring->verdict != Verdict::partly) return 2;
      if (uring->remedy.find("now 64 KiB") == std::string::npos) return 3;
    }
    const FolderReport& closed = machine.folders.at(1);
    if (!closed.error || closed.error->errno_value != EACCES || closed.error->detail.empty()) return 4;
    if (!machine.folders.at(2).error || machine.folders[2].error->errno_value != EACCES) return 5;
    return HasFailure() ? 6 : 0;
  });
  if (status == 77) GTEST_SKIP() << "users and limits cannot be changed here";
  EXPECT_EQ(status, 0);
}

// Mounts in a folder of the test, gone with it.
class ReportOnMounts : public Report {
 protected:
  bool mount(const char* type, const char* options, unsigned long flags = 0) {
    at_ = folder_.file("mounted");
    std::filesystem::create_directory(at_);
    mounted_ = ::mount("headrace-test", at_.c_str(), type, flags, options) == 0;
    return mounted_;
  }
  ~ReportOnMounts() override {
    if (mounted_) (void)::umount2(at_.c_str(), MNT_DETACH);
  }
  std::string at_;
  bool mounted_ = false;
};

TEST_F(ReportOnMounts, MemoryFileSystemsWorkAndAreCalledThat) {
  for (const char* type : {"tmpfs", "ramfs"}) {
    if (!mount(type, nullptr)) GTEST_SKIP() << "mounting is not allowed here";
    const MachineReport machine = report({at_});
    const FolderReport& folder = machine.folders.at(0);
    EXPECT_TRUE(folder.usable()) << type;
    EXPECT_EQ(folder.file_system.type, type);
    EXPECT_TRUE(folder.file_system.in_memory);
    ASSERT_FALSE(folder.advice.empty());
    const EngineReport* posix = engine_of(folder, EngineKind::posix);
    ASSERT_NE(posix, nullptr);
    EXPECT_EQ(posix->verdict, Verdict::works) << type;
    for (const RoundTrip& trip : posix->round_trips)
      EXPECT_EQ(trip.read_from, ReadFrom::memory) << trip.shape;
    ASSERT_EQ(::umount2(at_.c_str(), 0), 0) << "nothing is held";
    mounted_ = false;
    std::filesystem::remove(at_);
  }
}

TEST_F(ReportOnMounts, FullOneSaysHowMuchIsNeeded) {
  if (!mount("tmpfs", "size=1m")) GTEST_SKIP() << "mounting is not allowed here";
  const MachineReport machine = report({at_, folder_.path()});
  const FolderReport& folder = machine.folders.at(0);
  ASSERT_TRUE(folder.error);
  EXPECT_EQ(folder.error->errno_value, ENOSPC);
  EXPECT_EQ(folder.error->path, at_);
  EXPECT_NE(folder.error->detail.find("takes 8 MiB"), std::string::npos) << folder.error->detail;
  EXPECT_EQ(folder.file_system.type, "tmpfs");
  EXPECT_TRUE(machine.folders.at(1).usable());
  EXPECT_TRUE(std::filesystem::is_empty(at_));
}

TEST_F(ReportOnMounts, ReadOnlyOneSaysSo) {
  if (!mount("tmpfs", nullptr, MS_RDONLY)) GTEST_SKIP() << "mounting is not allowed here";
  const MachineReport machine = report({at_});
  const FolderReport& folder = machine.folders.at(0);
  ASSERT_TRUE(folder.error);
  EXPECT_EQ(folder.error->errno_value, EROFS);
  EXPECT_NE(folder.error->detail.find("read-only"), std::string::npos);
  EXPECT_NE(folder.file_system.mount_options.find("ro"), std::string::npos);
}

}  // namespace
}  // namespace headrace
