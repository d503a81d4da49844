// SPDX-License-Identifier: Apache-2.0
// System calls where there is one, else /proc and /sys.
// Any thread.
// Owns nothing.
#include "diagnose/report_system.h"

#include <dirent.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/units.h"
#include "os/direct_io.h"
#include "os/text_file.h"

namespace headrace::diagnose {
namespace {

constexpr size_t kProcessorTextBytes = size_t{16} << 10;  // the first processor's lines are enough
constexpr size_t kPoolsMax = 16;
constexpr uint32_t kCapIpcLock = 14;
constexpr uint64_t kStagingBytes = 256 * base::kMiB;  // of a handle of default settings, at most
constexpr uint64_t kAioPlacesOfHandle = 128;          // four workers of depth 32

// "MemTotal:  16384 kB", "model name : …": what follows the colon.
std::optional<std::string> field(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos && os::trim(line.substr(0, colon)) == key)
      return os::one_line(line.substr(colon + 1));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::nullopt;
}

uint64_t kibibytes_of(const std::string& text, std::string_view key) {
  const std::string value = field(text, key).value_or("");
  return os::parse_number(std::string_view(value).substr(0, value.find(' '))).value_or(0) << 10;
}

KernelFacts kernel_facts() {
  utsname names = {};
  if (::uname(&names) != 0) return {};
  return {.name = names.sysname, .release = os::one_line(names.release), .machine = names.machine};
}

ProcessorFacts processor_facts(const KernelFolders& kernel) {
  ProcessorFacts facts;
  const std::string text = os::read_text(kernel.proc + "/cpuinfo", kProcessorTextBytes).value_or("");
  facts.model = field(text, "model name").value_or("");
  facts.online = static_cast<uint32_t>(std::max(0L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t set;
  CPU_ZERO(&set);
  facts.allowed = facts.online;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) facts.allowed = static_cast<uint32_t>(CPU_COUNT(&set));
  const std::unique_ptr<DIR, int (*)(DIR*)> nodes(::opendir((kernel.sys + "/devices/system/node").c_str()),
                                                  &::closedir);
  for (const dirent* entry = nullptr; nodes != nullptr && (entry = ::readdir(nodes.get())) != nullptr;) {
    const std::string_view name = entry->d_name;
    if (name.starts_with("node") && os::parse_number(name.substr(4))) ++facts.numa_nodes;
  }
  return facts;
}

MemoryFacts memory_facts(const KernelFolders& kernel) {
  const std::string text = os::read_text(kernel.proc + "/meminfo").value_or("");
  return {.total_bytes = kibibytes_of(text, "MemTotal"),
          .available_bytes = kibibytes_of(text, "MemAvailable"),
          .page_bytes = os::page_bytes()};
}

HugePageFacts huge_page_facts(const KernelFolders& kernel) {
  HugePageFacts facts;
  const std::string modes = os::read_line(kernel.sys + "/kernel/mm/transparent_hugepage/enabled").value_or("");
  const size_t open = modes.find('[');
  const size_t close = modes.find(']');
  if (open != std::string::npos && close != std::string::npos && open < close)
    facts.transparent = modes.substr(open + 1, close - open - 1);
  const std::string pools = kernel.sys + "/kernel/mm/hugepages";
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(pools.c_str()), &::closedir);
  while (entries != nullptr && facts.reserved.size() < kPoolsMax) {
    const dirent* entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;  // "hugepages-2048kB"
    if (!name.starts_with("hugepages-") || !name.ends_with("kB")) continue;
    const std::optional<uint64_t> kibibytes = os::parse_number(name.substr(10, name.size() - 12));
    if (!kibibytes || *kibibytes > UINT64_MAX >> 10) continue;
    const std::string folder = fmt::format("{}/{}/", pools, name);
    facts.reserved.push_back({.page_bytes = *kibibytes << 10,
                              .total_pages = os::read_number(folder + "nr_hugepages").value_or(0),
                              .free_pages = os::read_number(folder + "free_hugepages").value_or(0)});
  }
  std::ranges::sort(facts.reserved, {}, &HugePagePool::page_bytes);
  return facts;
}

LockedMemoryFacts locked_memory_facts(const KernelFolders& kernel) {
  LockedMemoryFacts facts;
  rlimit limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    if (limit.rlim_cur != RLIM_INFINITY) facts.limit_bytes = limit.rlim_cur;
    if (limit.rlim_max != RLIM_INFINITY) facts.limit_max_bytes = limit.rlim_max;
  }
  const std::string status = os::read_text(kernel.proc + "/self/status").value_or("");
  const std::string capabilities = field(status, "CapEff").value_or("");
  // Sixteen hexadecimal digits, the capability of number 0 in the lowest bit of the last.
  constexpr size_t kFromEnd = kCapIpcLock / 4 + 1;
  if (capabilities.size() >= kFromEnd) {
    const char digit = capabilities[capabilities.size() - kFromEnd];
    const int value = digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : digit >= '0' && digit <= '9' ? digit - '0' : 0;
    facts.exempt = ((value >> (kCapIpcLock % 4)) & 1) != 0;
  }
  return facts;
}

void advise_on_memory(const MachineReport& report, std::vector<Advice>& advice) {
  const LockedMemoryFacts& locked = report.locked_memory;
  if (!locked.exempt && locked.limit_bytes && *locked.limit_bytes < kStagingBytes) {
    advice.push_back(
        {.about = "locked memory",
         .what =
             fmt::format("This user may lock {}. Staging memory (up to {}) and Buffers are registered with the ring "
                         "as far as that goes; transfers of the rest cost more CPU.",
                         limit_text(locked.limit_bytes), limit_text(kStagingBytes)),
         .remedy = "Raise it: `ulimit -l unlimited` as far as the hard limit lets you, `* - memlock unlimited` "
                   "in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, "
                   "`--ulimit memlock=-1` for a container."});
  }
  if (report.huge_pages.transparent == "never") {
    advice.push_back({.about = "huge pages",
                      .what = "Transparent huge pages are switched off; reads and writes are slower and cost more CPU.",
                      .remedy =
                          "As root: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`; or reserve pages "
                          "(`sysctl vm.nr_hugepages=256`) and ask for them (staging_pages=\"reserved\")."});
  }
}

void advise_on_aio(const MachineReport& report, std::vector<Advice>& advice) {
  const AioFacts& aio = report.aio;
  if (aio.places_max && aio.places_used && *aio.places_used + kAioPlacesOfHandle > *aio.places_max) {
    advice.push_back(
        {.about = "aio",
         .what = fmt::format("{} of {} places for asynchronous I/O are in use.", *aio.places_used, *aio.places_max),
         .remedy = "As root: `sysctl fs.aio-max-nr=1048576`."});
  }
}

}  // namespace

std::string limit_text(std::optional<uint64_t> bytes) {
  if (!bytes) return "no limit";
  if (*bytes >= base::kGiB && *bytes % base::kGiB == 0) return fmt::format("{} GiB", *bytes / base::kGiB);
  if (*bytes >= base::kMiB && *bytes % base::kMiB == 0) return fmt::format("{} MiB", *bytes / base::kMiB);
  if (*bytes >= base::kKiB && *bytes % base::kKiB == 0) return fmt::format("{} KiB", *bytes / base::kKiB);
  return fmt::format("{} bytes", *bytes);
}

std::vector<Advice> advise(const MachineReport& report) {
  std::vector<Advice> advice;
  advise_on_aio(report, advice);
  advise_on_memory(report, advice);
  return advice;
}

MachineReport describe_machine(const KernelFolders& kernel) {
  MachineReport report;
  report.kernel = kernel_facts();
  report.processors = processor_facts(kernel);
  report.memory = memory_facts(kernel);
  report.huge_pages = huge_page_facts(kernel);
  report.locked_memory = locked_memory_facts(kernel);
  if (const auto disabled = os::read_number(kernel.proc + "/sys/kernel/io_uring_disabled"); disabled && *disabled <= 9)
    report.uring_disabled = static_cast<uint32_t>(*disabled);
  report.aio.places_max = os::read_number(kernel.proc + "/sys/fs/aio-max-nr");
  report.aio.places_used = os::read_number(kernel.proc + "/sys/fs/aio-nr");
  report.gpu = find_gpu_libraries(kernel, report.kernel.machine);
  for (EngineInfo& engine : probe_engines()) {
    if (engine.kind != EngineKind::null) report.engines.push_back(std::move(engine));
  }
  report.advice = advise(report);
  return report;
}

}  // namespace headrace::diagnose
