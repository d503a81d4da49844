// SPDX-License-Identifier: Apache-2.0
// Block devices from a made-up /sys: what RAID, device mapper, partitions and hostile or missing text give.
#include "diagnose/report_devices.h"

#include <sys/sysmacros.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace headrace::diagnose {
namespace {

class ReportDevices : public testing::Test {
 protected:
  // `place` is below /sys/devices.
  void device(const std::string& place, const std::string& number) {
    const std::string folder = folder_.file("devices/" + place);
    std::filesystem::create_directories(folder);
    std::filesystem::create_directories(folder_.file("dev/block"));
    std::filesystem::create_directory_symlink(folder, folder_.file("dev/block/" + number));
  }
  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.file("devices/" + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }
  void member(const std::string& of, const std::string& place) {
    const std::filesystem::path slaves = folder_.file("devices/" + of + "/slaves");
    std::filesystem::create_directories(slaves);
    const std::filesystem::path target = folder_.file("devices/" + place);
    std::filesystem::create_directory_symlink(target, slaves / target.filename());
  }
  std::vector<BlockDeviceFacts> look(unsigned major_number, unsigned minor_number) {
    return block_devices({.proc = folder_.path(), .sys = folder_.path()}, makedev(major_number, minor_number));
  }
  test::TestFolder folder_;
};

TEST_F(ReportDevices, HiddenSysGivesNone) {
  EXPECT_TRUE(look(8, 0).empty());
  EXPECT_TRUE(block_devices({.proc = "/nowhere", .sys = "/nowhere"}, makedev(8, 0)).empty());
}

TEST_F(ReportDevices, NvmeDriveOnAPartitionTellsItsQueueAndItsNode) {
  const std::string disk = "pci0000:80/0000:81:00.0/nvme/nvme0/nvme0n1";
  device(disk, "259:0");
  device(disk + "/nvme0n1p2", "259:2");
  put(disk + "/nvme0n1p2/partition", "2\n");
  put(disk + "/device/model", "SAMSUNG MZQL2 3.84T              \n");
  put(disk + "/size", "7501476528\n");
  put(disk + "/queue/logical_block_size", "512\n");
  put(disk + "/queue/physical_block_size", "4096\n");
  put(disk + "/queue/nr_requests", "1023\n");
  put(disk + "/queue/scheduler", "[none] mq-deadline \n");
  put(disk + "/queue/rotational", "0\n");
  put(disk + "/queue/max_sectors_kb", "128\n");
  put(disk + "/queue/max_segments", "127\n");
  put(disk + "/queue/write_cache", "write through\n");
  put(disk + "/mq/0/nr_tags", "1023\n");
  put(disk + "/mq/1/nr_tags", "1023\n");
  put("pci0000:80/0000:81:00.0/numa_node", "1\n");
  const std::vector<BlockDeviceFacts> devices = look(259, 2);
  ASSERT_EQ(devices.size(), 1U);
  const BlockDeviceFacts& found = devices[0];
  EXPECT_EQ(found.name, "nvme0n1");
  EXPECT_EQ(found.partition, "nvme0n1p2");
  EXPECT_EQ(found.kind, "nvme");
  EXPECT_EQ(found.model, "SAMSUNG MZQL2 3.84T");
  EXPECT_EQ(found.size_bytes, 7501476528U * 512);
  EXPECT_EQ(found.logical_sector_bytes, 512U);
  EXPECT_EQ(found.physical_sector_bytes, 4096U);
  EXPECT_EQ(found.queue_depth, 1023U);
  EXPECT_EQ(found.hardware_queues, 2U);
  EXPECT_EQ(found.scheduler, "none");
  EXPECT_EQ(found.rotational, false);
  EXPECT_EQ(found.request_bytes_max, 128U << 10);
  EXPECT_EQ(found.request_segments_max, 127U);
  EXPECT_EQ(found.write_cache, "write through");
  EXPECT_EQ(found.virtual_disk, false);
  EXPECT_EQ(found.numa_node, 1U);
}

TEST_F(ReportDevices, RaidOfTwoPartitionsNamesItsMembersOnce) {
  device("virtual/block/md0", "9:0");
  put("virtual/block/md0/md/level", "raid0\n");
  for (const char* drive : {"nvme0n1", "nvme1n1"}) {
    const std::string disk = std::string("pci0/nvme/") + drive;
    put(disk + "/device/model", "Drive\n");
    put(disk + "/" + drive + "p1/partition", "1\n");
    member("virtual/block/md0", disk + "/" + drive + "p1");
  }
  const std::vector<BlockDeviceFacts> devices = look(9, 0);
  ASSERT_EQ(devices.size(), 3U);
  EXPECT_EQ(devices[0].kind, "md");
  EXPECT_EQ(devices[0].model, "raid0");
  EXPECT_EQ(devices[0].member_of, "");
  EXPECT_EQ(devices[0].virtual_disk, true);
  EXPECT_EQ(devices[1].name, "nvme0n1");
  EXPECT_EQ(devices[1].partition, "nvme0n1p1");
  EXPECT_EQ(devices[1].member_of, "md0");
  EXPECT_EQ(devices[2].name, "nvme1n1");
}

TEST_F(ReportDevices, VolumeOverEncryptionOverADiskIsFollowedDown) {
  device("virtual/block/dm-1", "252:1");
  put("virtual/block/dm-1/dm/name", "vg-data\n");
  put("virtual/block/dm-0/dm/name", "crypt\n");
  member("virtual/block/dm-1", "virtual/block/dm-0");
  put("pci0/ata1/sda/size", "8\n");
  member("virtual/block/dm-0", "pci0/ata1/sda");
  const std::vector<BlockDeviceFacts> devices = look(252, 1);
  ASSERT_EQ(devices.size(), 3U);
  EXPECT_EQ(devices[0].model, "vg-data");
  EXPECT_EQ(devices[1].member_of, "dm-1");
  EXPECT_EQ(devices[2].name, "sda");
  EXPECT_EQ(devices[2].kind, "scsi");
  EXPECT_EQ(devices[2].member_of, "dm-0");
  EXPECT_FALSE(devices[2].virtual_disk) << "a disk without a model may be either";
}

TEST_F(ReportDevices, MembersThatNameEachOtherAreNotFollowedForEver) {
  device("virtual/block/dm-0", "252:0");
  put("virtual/block/dm-1/size", "8\n");
  member("virtual/block/dm-0", "virtual/block/dm-1");
  member("virtual/block/dm-1", "virtual/block/dm-0");
  EXPECT_EQ(look(252, 0).size(), 2U);
}

TEST_F(ReportDevices, ThousandMembersAreCut) {
  device("virtual/block/md0", "9:0");
  for (int i = 0; i < 1000; ++i) {
    const std::string disk = "pci0/disk" + std::to_string(i);
    put(disk + "/size", "8\n");
    member("virtual/block/md0", disk);
  }
  EXPECT_EQ(look(9, 0).size(), 64U);
}

TEST_F(ReportDevices, HypervisorsDisksAreToldFromRealOnes) {
  device("pci0/virtio1/block/vda", "254:0");
  device("pci0/virtio2/host0/target0/sda", "8:0");
  device("pci0/nvme/nvme0/nvme0n1", "259:0");
  put("pci0/nvme/nvme0/nvme0n1/device/model", "Amazon Elastic Block Store\n");
  device("virtual/nvme-subsystem/nvme-subsys0/nvme1n1", "259:1");
  put("virtual/nvme-subsystem/nvme-subsys0/nvme1n1/device/model", "KIOXIA CM7\n");
  EXPECT_EQ(look(254, 0).at(0).kind, "virtio");
  EXPECT_EQ(look(254, 0).at(0).virtual_disk, true);
  EXPECT_EQ(look(8, 0).at(0).kind, "scsi");
  EXPECT_EQ(look(8, 0).at(0).virtual_disk, true);
  EXPECT_EQ(look(259, 0).at(0).virtual_disk, true);
  EXPECT_EQ(look(259, 1).at(0).virtual_disk, false) << "multi-path NVMe stands among the virtual devices";
}

TEST_F(ReportDevices, NonsenseInSysIsNotKnown) {
  device("pci0/sda", "8:0");
  put("pci0/sda/size", "18446744073709551615\n");
  put("pci0/sda/queue/nr_requests", "many\n");
  put("pci0/sda/queue/logical_block_size", "99999999999999999999\n");
  put("pci0/sda/queue/scheduler", "]][[\n");
  put("pci0/sda/queue/rotational", "");
  put("pci0/sda/device/model", "\x1b]0;title\x07" + std::string(100'000, 'x'));
  put("pci0/numa_node", "-1\n");
  const BlockDeviceFacts device = look(8, 0).at(0);
  EXPECT_FALSE(device.size_bytes);
  EXPECT_FALSE(device.queue_depth);
  EXPECT_FALSE(device.logical_sector_bytes);
  EXPECT_FALSE(device.rotational);
  EXPECT_FALSE(device.numa_node);
  EXPECT_EQ(device.model.find('\x1b'), std::string::npos);
  EXPECT_LE(device.model.size(), 4096U);
}

}  // namespace
}  // namespace headrace::diagnose
