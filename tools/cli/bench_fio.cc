// SPDX-License-Identifier: Apache-2.0
// fio: the same blocks, depth, direction and files. It counts its own time, from its first request to its last or to the end of its sync.
// One thread.
// See the header for ownership.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <limits>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench_peer.h"
#include "child.h"
#include "console.h"
#include "json_file.h"
#include "signals.h"

namespace headrace::cli {
namespace {

using Json = nlohmann::json;

constexpr auto kLimitLeast = std::chrono::seconds(120);
constexpr uint64_t kSlowestBytesPerSecond = 5'000'000;  // what takes longer than that is taken for stuck
constexpr uint64_t kAlignment = 4096;
constexpr uint32_t kJobsMax = 64;
constexpr uint64_t kInFlightBytesMax = uint64_t{128} << 20;  // what headrace's handles let through
constexpr double kShortSeconds = 0.1;

std::chrono::seconds limit_of(uint64_t bytes) {
  return kLimitLeast + std::chrono::seconds(bytes / kSlowestBytesPerSecond);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The share of a file that each of a worker's jobs moves.
struct Share {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class Fio final : public Peer {
 public:
  Fio(std::string program, std::string version, const PeerTask& task)
      : program_(std::move(program)), version_(std::move(version)), task_(task) {
    const std::vector<EngineInfo> engines = probe_engines();
    uring_ = task.engine != EngineKind::aio && std::ranges::any_of(engines, [](const EngineInfo& engine) {
               return engine.kind == EngineKind::uring && engine.available;
             });
    huge_ = free_reserved_bytes() >= memory_bytes();
    fixed_ = task.registered && task.engine != EngineKind::posix && uring_;
  }

  std::string name() const override { return "fio"; }
  std::string version() const override { return version_; }
  std::vector<std::string> command() const override { return command_; }
  std::string note() const override {
    if (!huge_)
      return fmt::format(
          "fio's buffers are on small pages, which can cost it half of the rate: reserve {} MiB of huge pages "
          "(vm.nr_hugepages) for a fair comparison",
          (memory_bytes() + (uint64_t{1} << 20) - 1) >> 20);
    if (!note_.empty()) return note_;
    if (task_.engine == EngineKind::posix)
      return fmt::format("fio has no threads of that kind, so it ran with {}", engine());
    if (shortest_seconds_ < kShortSeconds)
      return fmt::format("fio counts whole milliseconds, and began to end took it {:.0f}: more bytes tell more",
                         shortest_seconds_ * 1e3);
    return {};
  }

  std::expected<PeerSample, std::string> run(const std::vector<std::string>& paths,
                                             const std::function<void()>& tick) override {
    std::expected<PeerSample, std::string> sample = attempt(paths, tick);
    // Memory that cannot be registered, mostly for an ordinary user's limit of locked memory. One that hung would again.
    if (!sample && fixed_ && ended_ && !stopped()) {
      fixed_ = false;
      note_ = "fio could not register its buffers, so it ran without";
      sample = attempt(paths, tick);
    }
    return sample;
  }

 private:
  // Of a job fio takes a small page more than its blocks, and then whole huge ones.
  uint64_t memory_bytes() const {
    constexpr uint64_t kHugePage = uint64_t{2} << 20;
    const uint64_t job = (block_bytes() * depth() + kAlignment + kHugePage - 1) / kHugePage * kHugePage;
    return job * workers() * std::max(task_.files, 1U);
  }
  const char* engine() const { return uring_ ? "io_uring" : "libaio"; }
  uint32_t depth() const {
    const uint64_t most = std::max<uint64_t>(kInFlightBytesMax / workers() / block_bytes(), 1);
    return static_cast<uint32_t>(std::min<uint64_t>(task_.queue_depth, most));
  }
  uint32_t workers() const { return std::clamp(task_.workers, 1U, kJobsMax); }
  uint64_t block_bytes() const {
    return std::max(std::min(task_.block_bytes, task_.bytes / kAlignment * kAlignment), kAlignment);
  }

  // Whole blocks only: fio would leave out the ragged end of a file, or move it with another kind of I/O.
  std::vector<Share> shares() const {
    const uint64_t blocks = task_.bytes / block_bytes();
    std::vector<Share> all;
    uint64_t done = 0;
    for (uint32_t i = 0; i < workers(); ++i) {
      const uint64_t count = blocks / workers() + (i < blocks % workers() ? 1 : 0);
      if (count != 0) all.push_back({.offset = done * block_bytes(), .bytes = count * block_bytes()});
      done += count;
    }
    return all;
  }

  std::vector<std::string> words(const std::vector<std::string>& paths) const {
    const bool reading = task_.direction == IoDirection::read;
    std::vector<std::string> all = {program_,
                                    "--output-format=json",
                                    "--name=global",
                                    fmt::format("--ioengine={}", engine()),
                                    fmt::format("--rw={}", reading ? "read" : "write"),
                                    fmt::format("--bs={}", block_bytes()),
                                    fmt::format("--iodepth={}", depth()),
                                    fmt::format("--direct={}", task_.direct ? 1 : 0),
                                    fmt::format("--iomem={}", huge_ ? "mmaphuge" : "mmap"),
                                    "--fallocate=none",
                                    "--thread"};
    if (!task_.drop_page_cache) all.emplace_back("--invalidate=0");  // fio does it by itself
    if (fixed_) all.insert(all.end(), {"--fixedbufs=1", "--registerfiles=1"});
    if (reading) all.emplace_back("--readonly");
    if (!reading && task_.durable) all.emplace_back("--end_fsync=1");
    if (task_.order == RequestOrder::in_batches) {
      all.push_back(fmt::format("--iodepth_batch_submit={}", depth()));
      all.push_back(fmt::format("--iodepth_batch_complete_min={}", depth()));
    }
    for (const std::string& path : paths) {
      for (const Share& share : shares()) {
        all.emplace_back("--name=headrace");
        all.push_back(fmt::format("--filename={}", path));
        all.push_back(fmt::format("--offset={}", share.offset));
        all.push_back(fmt::format("--size={}", share.bytes));
      }
    }
    return all;
  }

  std::expected<PeerSample, std::string> attempt(const std::vector<std::string>& paths,
                                                 const std::function<void()>& tick) {
    if (shares().empty()) return std::unexpected("the file is shorter than a block of direct I/O");
    command_ = words({"FILE"});
    command_[0] = "fio";
    const auto call = [](void* context) { (*static_cast<const std::function<void()>*>(context))(); };
    std::function<void()> ticked = tick;
    const ChildEnd end = run_child(words(paths), limit_of(task_.bytes * paths.size()), call, &ticked);
    ended_ = end.exit_code >= 0;
    const size_t begin = end.out.find('{');
    const std::expected<Json, std::string> report =
        parse_json<Json>(begin == std::string::npos ? std::string() : end.out.substr(begin));
    if (end.exit_code != 0 || !report) {
      const std::string said = end.err.empty() ? end.out.substr(0, std::min<size_t>(begin, 200)) : end.err;
      return std::unexpected(fmt::format("fio {}: {}", end.why_not.empty() ? "said nothing" : end.why_not,
                                         printable(first_line(said).substr(0, 200))));
    }
    return sum(*report, paths.size());
  }

  // The jobs run at once: their bytes add up, and the slowest one's time counts.
  std::expected<PeerSample, std::string> sum(const Json& report, size_t files) {
    constexpr double kMilli = 1e-3;
    constexpr double kPercent = 100;
    PeerSample sample;
    try {
      for (const Json& job : report.at("jobs")) {
        if (const int error = job.at("error").get<int>(); error != 0)
          return std::unexpected(fmt::format("fio failed: {}", errno_name(error)));
        const Json& side = job.at(task_.direction == IoDirection::read ? "read" : "write");
        sample.bytes += side.at("io_bytes").get<uint64_t>();
        sample.seconds = std::max(sample.seconds, side.at("runtime").get<double>() * kMilli);
        sample.cpu_seconds += (job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>()) / kPercent *
                              job.at("job_runtime").get<double>() * kMilli;
      }
    } catch (const Json::exception& failure) {
      return std::unexpected(fmt::format("this version of fio reports in another way: {}", failure.what()));
    }
    uint64_t expected = 0;
    for (const Share& share : shares())
      expected += share.bytes * files;
    if (sample.seconds <= 0) return std::unexpected("fio measured no time: give it more bytes with --io-size");
    if (sample.bytes != expected)
      return std::unexpected(fmt::format("fio moved {} bytes of {}", sample.bytes, expected));
    shortest_seconds_ = std::min(shortest_seconds_, sample.seconds);
    return sample;
  }

  std::string program_;
  std::string version_;
  PeerTask task_;
  bool uring_ = false;
  bool huge_ = false;
  bool fixed_ = false;
  bool ended_ = false;  // the last one, by itself
  double shortest_seconds_ = std::numeric_limits<double>::infinity();
  std::string note_;
  std::vector<std::string> command_;
};

}  // namespace

uint64_t free_reserved_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  uint64_t pages = 0;
  uint64_t kib = 0;
  const auto number = [&](std::string_view name, uint64_t& value) {
    if (!line.starts_with(name)) return;
    const size_t digits = std::min(line.find_first_of("0123456789"), line.size());
    (void)std::from_chars(line.data() + digits, line.data() + line.size(), value);
  };
  while (std::getline(file, line)) {
    number("HugePages_Free:", pages);
    number("Hugepagesize:", kib);
  }
  constexpr uint64_t kKiB = 1024;
  return pages * kib * kKiB;
}

std::expected<std::unique_ptr<Peer>, std::string> find_fio(const PeerTask& task) {
  const std::string program = find_program("fio");
  if (program.empty())
    return std::unexpected(
        "fio is not installed, so there is nothing to compare with (Debian, Ubuntu: apt-get install fio)");
  const ChildEnd end = run_child({program, "--version"}, std::chrono::seconds(10), nullptr, nullptr);
  if (end.exit_code != 0) return std::unexpected(fmt::format("{} does not work: {}", program, end.why_not));
  return std::make_unique<Fio>(program, printable(first_line(end.out)), task);
}

}  // namespace headrace::cli
