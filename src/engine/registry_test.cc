// SPDX-License-Identifier: Apache-2.0
// Names, order, and verdicts that come from trying.
// One thread.
// Owns nothing beyond each test.
#include "engine/registry.h"

#include <sys/syscall.h>

#include "tests/support/child_process.h"
#include "tests/support/engine_fixture.h"

namespace headrace::engine {
namespace {

using namespace headrace::test;

TEST(Registry, EveryNameLeadsBackToItsKind) {
  for (EngineKind kind :
       {EngineKind::automatic, EngineKind::uring, EngineKind::aio, EngineKind::posix, EngineKind::null}) {
    EXPECT_EQ(engine_from_name(engine_name(kind)), kind);
  }
  for (std::string_view name : {"", "URING", "io_uring", "uring ", "cufile"}) {
    EXPECT_EQ(engine_from_name(name), std::nullopt) << name;
  }
}

TEST(Registry, AutomaticNeverTakesTheNullEngine) {
  for (EngineKind kind : automatic_order())
    EXPECT_NE(kind, EngineKind::null);
  EXPECT_EQ(automatic_order().back(), EngineKind::posix);
}

TEST(Registry, ProbeTellsOfEachEngineAndLeavesNothingOpen) {
  const auto descriptors = [] {
    using std::filesystem::directory_iterator;
    return std::distance(directory_iterator("/proc/self/fd"), directory_iterator());
  };
  const auto before = descriptors();
  const std::vector<EngineInfo> infos = probe_engines();
  EXPECT_EQ(descriptors(), before);
  ASSERT_EQ(infos.size(), 4u);
  for (const EngineInfo& info : infos) {
    EXPECT_FALSE(info.reason.empty()) << engine_name(info.kind);
    if (info.kind == EngineKind::posix || info.kind == EngineKind::null) {
      EXPECT_TRUE(info.available) << info.reason;
    }
  }
}

TEST(Registry, AutomaticGoesOnWithoutIoUringAndAio) {
  const int status = run_in_child([] {
    if (!deny_system_call({.system_call = SYS_io_uring_setup, .errno_value = EPERM}) ||
        !deny_system_call({.system_call = SYS_io_setup, .errno_value = ENOSYS})) {
      return 2;
    }
    const auto made = factory_for(EngineKind::automatic)({.depth = 4});
    if (!made || (*made)->caps().detail.find("threads") == std::string::npos) return 3;
    for (const EngineInfo& info : probe_engines()) {
      const bool wanted = info.kind == EngineKind::posix || info.kind == EngineKind::null;
      if (info.available != wanted) return 4;
    }
    return 0;
  });
  EXPECT_EQ(status, 0);
}

TEST(Registry, WithoutThreadsTheErrorNamesTheLimit) {
  const int status = run_in_child([] {
    if (!deny_system_call({.system_call = SYS_clone3, .errno_value = EAGAIN}) ||
        !deny_system_call({.system_call = SYS_clone, .errno_value = EAGAIN})) {
      return 2;
    }
    const auto made = factory_for(EngineKind::posix)({.depth = 4});
    return !made && made.error().errno_value == EAGAIN ? 0 : 3;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace headrace::engine
