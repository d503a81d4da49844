// SPDX-License-Identifier: Apache-2.0
// mount(2) and losetup. The mounts live in a mount namespace of this process's own, which the kernel takes down with the
// process, and the loop devices detach by themselves with the last mount: nothing is left even after SIGKILL.
#include "tests/support/stage.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "os/fd.h"

namespace headrace::test {
namespace {

namespace fs = std::filesystem;

std::string failed(const std::string& what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

// A folder in the build tree that a child process removes once this process is gone.
std::string scratch_folder() {
  std::string pattern = fs::current_path().string() + "/headrace-stage-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) return {};
  std::array<int, 2> ends = {-1, -1};
  if (::pipe2(ends.data(), 0) != 0) return {};
  const pid_t cleaner = ::fork();
  if (cleaner == 0) {
    ::setsid();
    ::signal(SIGPIPE, SIG_IGN);
    // Only the pipe stays open: ctest waits for the output of its children.
    for (int descriptor = 0; descriptor < 1024; ++descriptor) {
      if (descriptor != ends[0]) ::close(descriptor);
    }
    char byte = 0;
    while (::read(ends[0], &byte, 1) < 0 && errno == EINTR) {
    }
    std::error_code ignored;
    fs::remove_all(pattern, ignored);
    ::_exit(0);
  }
  ::close(ends[0]);
  (void)::fcntl(ends[1], F_SETFD, FD_CLOEXEC);  // the other end is never closed but by the end of this process
  return pattern;
}

struct Workshop {
  std::string folder;
  std::string why_not;
};

const Workshop& workshop() {
  static const Workshop made = [] {
    Workshop shop;
    if (::geteuid() != 0) {
      shop.why_not = "mounting needs root";
      return shop;
    }
    shop.folder = scratch_folder();
    if (shop.folder.empty()) {
      shop.why_not = failed("scratch folder");
    } else if (::unshare(CLONE_NEWNS) != 0) {
      shop.why_not = failed("a mount namespace of our own");
    } else if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      shop.why_not = failed("private mounts");
    }
    return shop;
  }();
  return made;
}

int run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()); }

// A loop device over `backing` with sectors of that size; detached by the kernel when nothing uses it.
os::Fd loop_device(const std::string& backing, uint32_t sector_bytes, std::string& name, std::string& why_not) {
  const os::Fd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  const os::Fd file(::open(backing.c_str(), O_RDWR | O_CLOEXEC));
  if (!control.is_open() || !file.is_open()) {
    why_not = failed("loop-control");
    return {};
  }
  for (int attempt = 0; attempt < 16; ++attempt) {  // another process may take the device first
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) break;
    name = fmt::format("/dev/loop{}", number);
    os::Fd device(::open(name.c_str(), O_RDWR | O_CLOEXEC));
    if (!device.is_open()) {
      (void)::mknod(name.c_str(), S_IFBLK | 0600, static_cast<dev_t>(7 << 8 | number));
      device = os::Fd(::open(name.c_str(), O_RDWR | O_CLOEXEC));
    }
    loop_config config = {};
    config.fd = static_cast<uint32_t>(file.get());
    config.block_size = sector_bytes;
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
    if (device.is_open() && ::ioctl(device.get(), LOOP_CONFIGURE, &config) == 0) return device;
    if (errno != EBUSY) break;
  }
  why_not = failed("loop device");
  return {};
}

Stage mount_ext4(const std::string& name, uint64_t bytes, uint32_t sector_bytes) {
  Stage out = {.backing = workshop().folder + "/" + name + ".img", .direct = true, .sector_bytes = sector_bytes};
  const std::string folder = workshop().folder + "/" + name;
  const os::Fd image(::open(out.backing.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!image.is_open() || ::ftruncate(image.get(), static_cast<off_t>(bytes)) != 0) {
    out.why_not = failed("image");
    return out;
  }
  fs::create_directory(folder);
  std::string device_name;
  const os::Fd device = loop_device(out.backing, sector_bytes, device_name, out.why_not);
  if (!device.is_open()) return out;
  if (run("PATH=$PATH:/sbin:/usr/sbin mkfs.ext4 -q -F -b 4096 -m 0 -E lazy_itable_init=0,lazy_journal_init=0 " +
          device_name) != 0) {
    out.why_not = "mkfs.ext4 failed (package e2fsprogs)";
  } else if (::mount(device_name.c_str(), folder.c_str(), "ext4", 0, "errors=continue") != 0) {
    out.why_not = failed("mount ext4");
  } else {
    (void)::chmod(folder.c_str(), 0777);
    out.folder = folder;
  }
  return out;
}

Stage mount_in_memory(const char* type) {
  Stage out;
  const std::string folder = workshop().folder + "/" + type;
  fs::create_directory(folder);
  if (::mount(type, folder.c_str(), type, 0, std::strcmp(type, "tmpfs") == 0 ? "size=1g" : nullptr) != 0) {
    out.why_not = failed(fmt::format("mount {}", type));
    return out;
  }
  (void)::chmod(folder.c_str(), 0777);
  out.folder = folder;
  return out;
}

Stage mount_overlay() {
  Stage out = {.direct = true};
  const Stage& below = stage(StageKind::ext4_4096);
  if (below.folder.empty()) {
    out.why_not = "no ext4 to lay it over: " + below.why_not;
    return out;
  }
  const std::string root = below.folder + "/overlay";
  for (const char* part : {"", "/lower", "/upper", "/work", "/merged"})
    fs::create_directory(root + part);
  const std::string options = fmt::format("lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work", root);
  if (::mount("overlay", (root + "/merged").c_str(), "overlay", 0, options.c_str()) != 0) {
    out.why_not = failed("mount overlay");
    return out;
  }
  (void)::chmod((root + "/merged").c_str(), 0777);
  out.folder = root + "/merged";
  out.sector_bytes = 4096;
  return out;
}

Stage make(StageKind kind) {
  if (kind == StageKind::build_tree) return {.folder = fs::current_path().string(), .direct = true};
  if (!workshop().why_not.empty()) return {.why_not = workshop().why_not};
  switch (kind) {
    case StageKind::ext4_4096: return mount_ext4("ext4-4096", 1ULL << 30, 4096);
    case StageKind::tmpfs: return mount_in_memory("tmpfs");
    case StageKind::ramfs: return mount_in_memory("ramfs");
    case StageKind::overlay: return mount_overlay();
    case StageKind::small_ext4: return mount_ext4("small", 16ULL << 20, 512);
    case StageKind::build_tree: break;
  }
  return {};
}

}  // namespace

const char* stage_name(StageKind kind) {
  switch (kind) {
    case StageKind::build_tree: return "BuildTree";
    case StageKind::ext4_4096: return "Ext4Sector4096";
    case StageKind::tmpfs: return "Tmpfs";
    case StageKind::ramfs: return "Ramfs";
    case StageKind::overlay: return "Overlay";
    case StageKind::small_ext4: return "SmallExt4";
  }
  return "Unknown";
}

const Stage& stage(StageKind kind) {
  static std::map<StageKind, Stage> stages;
  const auto found = stages.find(kind);
  if (found != stages.end()) return found->second;
  Stage made = make(kind);  // may ask for another
  return stages[kind] = std::move(made);
}

Stage extra_ext4(const std::string& name, uint64_t bytes) {
  if (!workshop().why_not.empty()) return {.why_not = workshop().why_not};
  return mount_ext4(name, bytes, 512);
}

LoopDevice::LoopDevice(const std::string& name, uint64_t bytes, uint32_t sector_bytes) : why_not_(workshop().why_not) {
  if (!why_not_.empty()) return;
  const std::string backing = workshop().folder + "/" + name + ".img";
  const os::Fd image(::open(backing.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!image.is_open() || ::ftruncate(image.get(), static_cast<off_t>(bytes)) != 0) {
    why_not_ = failed("image");
    return;
  }
  device_ = loop_device(backing, sector_bytes, name_, why_not_);
  if (!device_.is_open()) name_.clear();
}

}  // namespace headrace::test
