// SPDX-License-Identifier: Apache-2.0
// The mount is found by the number that the kernel gives the open folder, never by comparing names: mounts lie over mounts.
// Any thread.
// Owns nothing.
#include "diagnose/report_folder.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "os/error.h"
#include "os/fd.h"
#include "os/text_file.h"

namespace headrace::diagnose {
namespace {

constexpr size_t kMountinfoBytesMax = size_t{4} << 20;  // some machines have thousands of mounts

// mountinfo writes blanks, newlines and backslashes as \ooo.
std::string unescape(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return i + at < text.size() && text[i + at] >= '0' && text[i + at] <= '7'; };
    if (text[i] == '\\' && digit(1) && digit(2) && digit(3)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::string_view next_word(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

std::string option_value(std::string_view options, std::string_view key) {
  while (!options.empty()) {
    const size_t end = std::min(options.find(','), options.size());
    const std::string_view option = options.substr(0, end);
    if (option.starts_with(key)) return unescape(option.substr(key.size()));
    options.remove_prefix(std::min(end + 1, options.size()));
  }
  return {};
}

// "36 35 98:0 /root /mounted rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue"
std::optional<Mount> parse_mount(std::string_view line, uint64_t mount_id) {
  if (os::parse_number(next_word(line)) != mount_id) return std::nullopt;
  for (int skipped = 0; skipped < 3; ++skipped)
    (void)next_word(line);
  Mount mount;
  mount.facts.mounted_at = os::one_line(unescape(next_word(line)));
  mount.facts.mount_options = os::one_line(next_word(line));
  while (!line.empty() && next_word(line) != "-") {
  }
  mount.facts.type = os::one_line(unescape(next_word(line)));
  mount.facts.source = os::one_line(unescape(next_word(line)));
  const std::string_view of_file_system = next_word(line);
  mount.facts.options = os::one_line(of_file_system);
  mount.facts.in_memory = mount.facts.type == "tmpfs" || mount.facts.type == "ramfs";
  if (mount.facts.type == "overlay") mount.upper_folder = option_value(of_file_system, "upperdir=");
  return mount;
}

std::optional<Mount> mount_of(const KernelFolders& kernel, int descriptor) {
  const std::optional<std::string> about = os::read_text(fmt::format("{}/self/fdinfo/{}", kernel.proc, descriptor));
  constexpr std::string_view kKey = "mnt_id:";
  const size_t at = about ? about->find(kKey) : std::string::npos;
  if (at == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(*about).substr(at + kKey.size());
  const std::optional<uint64_t> mount_id = os::parse_number(rest.substr(0, rest.find('\n')));
  const std::optional<std::string> table = os::read_text(kernel.proc + "/self/mountinfo", kMountinfoBytesMax);
  if (!mount_id || !table) return std::nullopt;
  return find_mount(*table, *mount_id);
}

// The number of the device that files of this folder end up on. File systems of many devices (btrfs) and stacked ones
// have a number of their own, which no device has.
dev_t device_below(const struct stat& status, const std::optional<Mount>& mount) {
  struct stat other = {};
  if (mount && !mount->upper_folder.empty()) {
    return ::stat(mount->upper_folder.c_str(), &other) == 0 ? other.st_dev : 0;
  }
  if (mount && mount->facts.source.starts_with("/dev/") && ::stat(mount->facts.source.c_str(), &other) == 0 &&
      S_ISBLK(other.st_mode) && status.st_dev != other.st_rdev)
    return other.st_rdev;
  return status.st_dev;
}

Error refused(const FolderReport& report, int errno_value) {
  Error error = os::system_error("open folder", report.path, errno_value);
  if (errno_value == ENOENT) error.detail = "there is no such folder; make it, or check the path";
  return error;
}

}  // namespace

std::optional<Mount> find_mount(std::string_view mountinfo, uint64_t mount_id) {
  while (!mountinfo.empty()) {
    const size_t end = std::min(mountinfo.find('\n'), mountinfo.size());
    if (std::optional<Mount> mount = parse_mount(mountinfo.substr(0, end), mount_id)) return mount;
    mountinfo.remove_prefix(std::min(end + 1, mountinfo.size()));
  }
  return std::nullopt;
}

Status describe_folder(const KernelFolders& kernel, FolderReport& report) {
  if (Status usable = os::check_path("open folder", report.path); !usable) return usable;
  char resolved[PATH_MAX];
  if (::realpath(report.path.c_str(), resolved) == nullptr) return std::unexpected(refused(report, errno));
  report.real_path = resolved;
  const os::Fd folder(::open(resolved, O_PATH | O_CLOEXEC));
  struct stat status = {};
  if (!folder.is_open() || ::fstat(folder.get(), &status) != 0) return std::unexpected(refused(report, errno));
  if (!S_ISDIR(status.st_mode)) {
    Error error = refused(report, ENOTDIR);
    error.detail = "this is a file; name the folder that holds it";
    return std::unexpected(std::move(error));
  }
  const std::optional<Mount> mount = mount_of(kernel, folder.get());
  if (mount) report.file_system = mount->facts;
  struct statvfs space = {};
  if (::fstatvfs(folder.get(), &space) == 0 && space.f_blocks != 0) {  // ramfs counts nothing
    report.file_system.size_bytes = uint64_t{space.f_blocks} * space.f_frsize;
    report.file_system.free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  }
  report.devices = block_devices(kernel, device_below(status, mount));
  return {};
}

}  // namespace headrace::diagnose
