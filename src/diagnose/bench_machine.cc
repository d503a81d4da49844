// SPDX-License-Identifier: Apache-2.0
// /proc and /sys, read with bounds: what they say is text of others, and in a container any of it may be missing.
// Any thread.
// Owns nothing.
#include "diagnose/bench_machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "os/mapping.h"

namespace headrace::diagnose {
namespace {

constexpr size_t kLinesMax = 100'000;
constexpr size_t kWordBytesMax = 200;  // of what is taken over from /sys and /proc
constexpr uint64_t kKiB = 1024;

// Calls `use` with each line until it returns true.
template <typename Use>
void each_line(const char* path, Use use) {
  std::ifstream file(path);
  std::string line;
  for (size_t i = 0; i < kLinesMax && std::getline(file, line); ++i) {
    if (use(std::string_view(line))) return;
  }
}

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  const size_t end = text.find_last_not_of(" \t\r\n");
  return std::string(text.substr(begin, std::min(end + 1 - begin, kWordBytesMax)));
}

std::string first_line(const std::string& path) {
  std::string found;
  each_line(path.c_str(), [&](std::string_view line) {
    found = trimmed(line);
    return true;
  });
  return found;
}

// The number behind "NAME:", as in /proc/meminfo and /proc/self/io.
std::optional<uint64_t> field(std::string_view line, std::string_view name) {
  if (!line.starts_with(name) || line.size() == name.size() || line[name.size()] != ':') return std::nullopt;
  const std::string digits = trimmed(line.substr(name.size() + 1));
  uint64_t value = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (failed != std::errc{} || end == digits.data()) return std::nullopt;
  return value;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const size_t end = std::min(line.find(' '), line.size());
    if (end != 0) words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

// A line of /proc/self/mountinfo: id, parent, device, root, mount point, options, optional fields, "-", type, source, ...
void find_mount(BenchmarkPlace& place, dev_t device) {
  const std::string wanted = fmt::format("{}:{}", major(device), minor(device));
  each_line("/proc/self/mountinfo", [&](std::string_view line) {
    const std::vector<std::string_view> words = words_of(line);
    if (words.size() < 10 || words[2] != wanted) return false;
    const auto dash = std::ranges::find(words, "-");
    if (dash == words.end() || dash + 1 == words.end()) return false;
    place.file_system = trimmed(*(dash + 1));
    place.mount_options = trimmed(words[5]);
    return true;
  });
}

void find_device(BenchmarkPlace& place, dev_t device) {
  namespace fs = std::filesystem;
  std::error_code failed;
  fs::path folder = fs::canonical(fmt::format("/sys/dev/block/{}:{}", major(device), minor(device)), failed);
  if (failed) return;
  if (fs::exists(folder / "partition", failed)) folder = folder.parent_path();
  place.device = trimmed(folder.filename().string());
  place.device_model = first_line((folder / "device" / "model").string());
}

}  // namespace

BenchmarkMachine describe_machine() {
  BenchmarkMachine machine;
  utsname names = {};
  if (::uname(&names) == 0) {
    machine.kernel = names.release;
    machine.architecture = names.machine;
  }
  each_line("/proc/cpuinfo", [&](std::string_view line) {
    if (!line.starts_with("model name") && !line.starts_with("Model")) return false;
    machine.processor = trimmed(line.substr(std::min(line.find(':'), line.size() - 1) + 1));
    return true;
  });
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) machine.processors = static_cast<uint32_t>(CPU_COUNT(&set));
  each_line("/proc/meminfo", [&](std::string_view line) {
    const std::optional<uint64_t> total = field(line, "MemTotal");
    if (total) machine.memory_bytes = *total * kKiB;
    return total.has_value();
  });
  return machine;
}

BenchmarkPlace describe_place(const std::string& path, int descriptor) {
  BenchmarkPlace place = {.path = path};
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return place;
  const dev_t device = S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev;
  if (!S_ISBLK(status.st_mode)) find_mount(place, device);
  find_device(place, device);
  return place;
}

double cpu_seconds() noexcept {
  constexpr double kMicro = 1e-6;
  rusage usage = {};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * kMicro;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::optional<uint64_t> available_memory_bytes() {
  std::optional<uint64_t> found;
  each_line("/proc/meminfo", [&](std::string_view line) {
    found = field(line, "MemAvailable");
    return found.has_value();
  });
  if (found) *found *= kKiB;
  return found;
}

std::optional<DeviceBytes> device_bytes() {
  std::optional<uint64_t> read;
  std::optional<uint64_t> written;
  each_line("/proc/self/io", [&](std::string_view line) {
    if (const std::optional<uint64_t> value = field(line, "read_bytes")) read = value;
    if (const std::optional<uint64_t> value = field(line, "write_bytes")) written = value;
    return read && written;
  });
  if (!read || !written) return std::nullopt;
  return DeviceBytes{.read = *read, .written = *written};
}

Primed prime_memory(uint64_t bytes, ProgressMeter& meter) {
  constexpr uint64_t kLookEveryBytes = uint64_t{8} << 20;
  const uint64_t bound = available_memory_bytes().value_or(0) / 2;
  const uint64_t wanted = std::min(bytes > bound / 4 ? bound : 4 * bytes, bound);
  if (wanted == 0) return Primed::done;
  const Result<os::Mapping> memory =
      os::Mapping::create(wanted, PageKind::transparent, os::ForkPolicy::keep_out_of_children);
  if (!memory) return Primed::done;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  volatile std::byte* const first = memory->data();
  for (uint64_t at = 0; at < wanted; at += page) {
    if (at % kLookEveryBytes == 0 && meter.tick("preparing memory")) return Primed::stopped;
    first[at] = std::byte{1};
  }
  return Primed::done;
}

}  // namespace headrace::diagnose
