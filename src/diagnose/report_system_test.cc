// SPDX-License-Identifier: Apache-2.0
// The machine as a made-up /proc and /sys tell it, and the advice that follows.
#include "diagnose/report_system.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace headrace::diagnose {
namespace {

class ReportSystem : public testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.file(path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }
  MachineReport look() { return describe_machine({.proc = folder_.file("proc"), .sys = folder_.file("sys")}); }
  static const Advice* about(const MachineReport& report, std::string_view what) {
    for (const Advice& advice : report.advice) {
      if (advice.about == what) return &advice;
    }
    return nullptr;
  }
  test::TestFolder folder_;
};

TEST_F(ReportSystem, HiddenProcAndSysLeaveGapsAndNoGuesses) {
  const MachineReport report = look();
  EXPECT_NE(report.kernel.release, "") << "which is a system call";
  EXPECT_EQ(report.processors.model, "");
  EXPECT_EQ(report.processors.numa_nodes, 0U);
  EXPECT_EQ(report.memory.total_bytes, 0U);
  EXPECT_EQ(report.huge_pages.transparent, "");
  EXPECT_TRUE(report.huge_pages.reserved.empty());
  EXPECT_FALSE(report.locked_memory.exempt);
  EXPECT_FALSE(report.uring_disabled);
  EXPECT_FALSE(report.aio.places_max);
  EXPECT_EQ(about(report, "huge pages"), nullptr);
  EXPECT_EQ(about(report, "aio"), nullptr);
}

TEST_F(ReportSystem, IsReadAsTheKernelWritesIt) {
  put("proc/cpuinfo", "processor\t: 0\nmodel name\t: A Processor @ 3.0GHz\n\nprocessor\t: 1\nmodel name\t: Another\n");
  put("proc/meminfo", "MemTotal:       24684096 kB\nMemFree: 1 kB\nMemAvailable:   22000000 kB\n");
  put("proc/self/status", "Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t0000000000004000\n");
  put("proc/sys/kernel/io_uring_disabled", "2\n");
  put("proc/sys/fs/aio-max-nr", "65536\n");
  put("proc/sys/fs/aio-nr", "12\n");
  put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  put("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2\n");
  put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "256\n");
  put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "200\n");
  put("sys/kernel/mm/hugepages/hugepages-99999999999999999999kB/nr_hugepages", "1\n");
  std::filesystem::create_directories(folder_.file("sys/devices/system/node/node0"));
  std::filesystem::create_directories(folder_.file("sys/devices/system/node/node1"));
  put("sys/devices/system/node/node_wrong", "");
  put("sys/module/nvidia/version", "580.95.05\n");
  const MachineReport report = look();
  EXPECT_EQ(report.processors.model, "A Processor @ 3.0GHz");
  EXPECT_EQ(report.processors.numa_nodes, 2U);
  EXPECT_EQ(report.memory.total_bytes, uint64_t{24684096} << 10);
  EXPECT_EQ(report.memory.available_bytes, uint64_t{22000000} << 10);
  EXPECT_TRUE(report.locked_memory.exempt) << "CAP_IPC_LOCK is bit 14";
  EXPECT_EQ(report.uring_disabled, 2U);
  EXPECT_EQ(report.aio.places_max, 65536U);
  EXPECT_EQ(report.aio.places_used, 12U);
  EXPECT_EQ(report.huge_pages.transparent, "madvise");
  ASSERT_EQ(report.huge_pages.reserved.size(), 2U);
  EXPECT_EQ(report.huge_pages.reserved[0].page_bytes, 2U << 20);
  EXPECT_EQ(report.huge_pages.reserved[0].free_pages, 200U);
  EXPECT_EQ(report.huge_pages.reserved[1].total_pages, 2U);
  EXPECT_EQ(report.gpu.driver_version, "580.95.05");
  EXPECT_TRUE(report.advice.empty()) << report.advice[0].what;
}

TEST_F(ReportSystem, WhatIsShortOrSwitchedOffGetsAdvice) {
  put("proc/sys/fs/aio-max-nr", "65536\n");
  put("proc/sys/fs/aio-nr", "65500\n");
  put("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  const MachineReport report = look();
  ASSERT_NE(about(report, "aio"), nullptr);
  EXPECT_NE(about(report, "aio")->what.find("65500 of 65536"), std::string::npos);
  EXPECT_NE(about(report, "aio")->remedy.find("fs.aio-max-nr"), std::string::npos);
  ASSERT_NE(about(report, "huge pages"), nullptr);
  EXPECT_NE(about(report, "huge pages")->remedy, "");
}

TEST(ReportLimit, ReadsAsPeopleWriteIt) {
  EXPECT_EQ(limit_text(std::nullopt), "no limit");
  EXPECT_EQ(limit_text(0), "0 bytes");
  EXPECT_EQ(limit_text(64 << 10), "64 KiB");
  EXPECT_EQ(limit_text(8 << 20), "8 MiB");
  EXPECT_EQ(limit_text(uint64_t{3} << 30), "3 GiB");
  EXPECT_EQ(limit_text(1'000'000), "1000000 bytes");
}

}  // namespace
}  // namespace headrace::diagnose
