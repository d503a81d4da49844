// SPDX-License-Identifier: Apache-2.0
// /sys/dev/block/MAJOR:MINOR is a link to the device's folder; a partition's lies in that of its disk; `slaves` names members.
// Any thread.
// Owns nothing.
#include "diagnose/report_devices.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "os/text_file.h"

namespace headrace::diagnose {
namespace {

constexpr size_t kDevicesMax = 64;    // of one report; a RAID of more is cut
constexpr size_t kEntriesMax = 4096;  // of one folder
constexpr int kParentsMax = 16;
constexpr uint64_t kSectorBytes = 512;  // the unit of `size`, whatever the device's sector

struct Found {
  std::string folder;  // of the whole device, below /sys/devices
  std::string partition;
  std::string member_of;
};

std::string real_path(const std::string& path) {
  char resolved[PATH_MAX];
  return ::realpath(path.c_str(), resolved) != nullptr ? std::string(resolved) : std::string();
}

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

// Sorted, so that a report reads the same each time.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), &::closedir);
  if (entries == nullptr) return names;
  while (names.size() < kEntriesMax) {
    const dirent* entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::ranges::sort(names);
  return names;
}

// `link` names a device or a partition of one.
Found find_device(const std::string& link, std::string member_of) {
  Found found = {.folder = real_path(link), .partition = {}, .member_of = std::move(member_of)};
  if (!found.folder.empty() && exists(found.folder + "/partition")) {
    found.partition = os::one_line(last_name(found.folder));
    found.folder = parent_of(found.folder);
  }
  return found;
}

std::string kind_of(std::string_view name, std::string_view folder) {
  struct Prefix {
    std::string_view of_name, kind;
  };
  constexpr std::array kPrefixes = {
      Prefix{"nvme", "nvme"}, Prefix{"md", "md"},   Prefix{"dm-", "dm"},     Prefix{"loop", "loop"},
      Prefix{"zram", "zram"}, Prefix{"nbd", "nbd"}, Prefix{"mmcblk", "mmc"}, Prefix{"xvd", "xen"},
      Prefix{"vd", "virtio"}, Prefix{"sd", "scsi"},
  };
  if (folder.find("/virtio") != std::string_view::npos && !name.starts_with("sd")) return "virtio";
  for (const Prefix& prefix : kPrefixes) {
    if (name.starts_with(prefix.of_name)) return std::string(prefix.kind);
  }
  return "other";
}

// Devices that a hypervisor or a cloud makes say so in their model, if they do not show it by their bus.
std::optional<bool> is_virtual(const BlockDeviceFacts& device, std::string_view folder) {
  constexpr std::array<std::string_view, 9> kModels = {
      "QEMU", "VBOX", "VMware", "Virtual", "Amazon Elastic Block Store", "Google", "MSFT", "Msft", "PersistentDisk"};
  if (device.kind == "virtio" || device.kind == "xen" || folder.find("/virtio") != std::string_view::npos) return true;
  if (folder.find("/devices/virtual/") != std::string_view::npos) {
    // Multi-path NVMe stands there too, and is real.
    if (device.kind != "nvme") return true;
  }
  if (device.model.empty()) return std::nullopt;
  return std::ranges::any_of(kModels,
                             [&](std::string_view word) { return device.model.find(word) != std::string::npos; });
}

// "none [mq-deadline] kyber": the one in brackets.
std::string chosen(const std::string& text) {
  const size_t open = text.find('[');
  const size_t close = text.find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return text;
  return text.substr(open + 1, close - open - 1);
}

std::optional<uint32_t> small_number(const std::string& path) {
  const std::optional<uint64_t> value = os::read_number(path);
  return value && *value <= UINT32_MAX ? std::optional(static_cast<uint32_t>(*value)) : std::nullopt;
}

// Of the device or the nearest bridge or controller above it that knows; the kernel says -1 for "none in particular".
std::optional<uint32_t> numa_node_of(std::string folder, std::string_view end) {
  for (int i = 0; i < kParentsMax && folder.size() > end.size(); ++i) {
    for (const char* place : {"/numa_node", "/device/numa_node"}) {
      if (const std::optional<uint32_t> node = small_number(folder + place)) return node;
    }
    folder = parent_of(folder);
  }
  return std::nullopt;
}

std::string model_of(const std::string& folder, std::string_view kind) {
  if (kind == "dm") return os::read_line(folder + "/dm/name").value_or("");
  if (kind == "md") return os::read_line(folder + "/md/level").value_or("");
  return os::read_line(folder + "/device/model").value_or("");
}

BlockDeviceFacts describe(const KernelFolders& kernel, const Found& found) {
  const std::string& folder = found.folder;
  const std::string queue = folder + "/queue/";
  BlockDeviceFacts facts;
  facts.name = os::one_line(last_name(folder));
  facts.partition = found.partition;
  facts.member_of = found.member_of;
  facts.kind = kind_of(facts.name, folder);
  facts.model = model_of(folder, facts.kind);
  facts.backing_file = os::read_line(folder + "/loop/backing_file").value_or("");
  facts.scheduler = chosen(os::read_line(queue + "scheduler").value_or(""));
  facts.write_cache = os::read_line(queue + "write_cache").value_or("");
  if (const auto sectors = os::read_number(folder + "/size"); sectors && *sectors <= UINT64_MAX / kSectorBytes)
    facts.size_bytes = *sectors * kSectorBytes;
  facts.logical_sector_bytes = small_number(queue + "logical_block_size");
  facts.physical_sector_bytes = small_number(queue + "physical_block_size");
  facts.queue_depth = small_number(queue + "nr_requests");
  if (const size_t queues = names_in(folder + "/mq").size(); queues != 0)
    facts.hardware_queues = static_cast<uint32_t>(queues);
  if (const auto kibibytes = small_number(queue + "max_sectors_kb"))
    facts.request_bytes_max = uint64_t{*kibibytes} << 10;
  facts.request_segments_max = small_number(queue + "max_segments");
  if (const auto rotational = os::read_number(queue + "rotational")) facts.rotational = *rotational != 0;
  facts.virtual_disk = is_virtual(facts, folder);
  facts.numa_node = numa_node_of(folder, real_path(kernel.sys));
  return facts;
}

}  // namespace

std::vector<BlockDeviceFacts> block_devices(const KernelFolders& kernel, dev_t device) {
  const std::string link = fmt::format("{}/dev/block/{}:{}", kernel.sys, major(device), minor(device));
  std::vector<Found> queue = {find_device(link, {})};
  std::vector<BlockDeviceFacts> devices;
  for (size_t i = 0; i < queue.size(); ++i) {
    const Found found = queue[i];
    if (found.folder.empty()) continue;
    devices.push_back(describe(kernel, found));
    for (const std::string& member : names_in(found.folder + "/slaves")) {
      Found below = find_device(fmt::format("{}/slaves/{}", found.folder, member), devices.back().name);
      const bool known = std::ranges::any_of(queue, [&](const Found& other) {
        return other.folder == below.folder && other.partition == below.partition;
      });
      if (!known && queue.size() < kDevicesMax) queue.push_back(std::move(below));
    }
  }
  return devices;
}

}  // namespace headrace::diagnose
