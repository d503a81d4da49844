// SPDX-License-Identifier: Apache-2.0
// gdsio, the tool of NVIDIA GPUDirect Storage, in its mode between storage and CPU memory: that is what headrace moves so far.
// One thread.
// See the header for ownership.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include "bench_peer.h"
#include "child.h"
#include "console.h"

namespace headrace::cli {
namespace {

constexpr const char* kUsualPlace = "/usr/local/cuda/gds/tools/gdsio";
constexpr auto kLimit = std::chrono::seconds(600);

class Gdsio final : public Peer {
 public:
  Gdsio(std::string program, const PeerTask& task) : program_(std::move(program)), task_(task) {}

  std::string name() const override { return "gdsio"; }
  std::string version() const override { return {}; }
  std::vector<std::string> command() const override { return words("FILE"); }
  std::string note() const override {
    return "gdsio ran between storage and CPU memory (-x 1), with a thread for each block";
  }

  std::expected<PeerSample, std::string> run(const std::vector<std::string>& paths,
                                             const std::function<void()>& tick) override {
    if (paths.size() != 1) return std::unexpected("gdsio is run on one file only");
    std::function<void()> ticked = tick;
    const auto call = [](void* context) { (*static_cast<const std::function<void()>*>(context))(); };
    const ChildEnd end = run_child(words(paths.front()), kLimit, call, &ticked);
    if (end.exit_code != 0) return std::unexpected(fmt::format("gdsio {}", end.why_not));
    // "... Throughput: 3.141592 GiB/sec, ..."
    constexpr std::string_view kLabel = "Throughput: ";
    const size_t at = end.out.find(kLabel);
    const double gib_per_s = at == std::string::npos ? 0 : std::strtod(end.out.c_str() + at + kLabel.size(), nullptr);
    if (gib_per_s <= 0 || end.out.find("GiB/sec", at) == std::string::npos)
      return std::unexpected(
          fmt::format("this version of gdsio reports in another way: {}", printable(end.out.substr(0, 200))));
    constexpr double kGiB = 1024.0 * 1024 * 1024;
    return PeerSample{.seconds = static_cast<double>(task_.bytes) / (gib_per_s * kGiB), .bytes = task_.bytes};
  }

 private:
  std::vector<std::string> words(const std::string& path) const {
    return {program_,
            "-f",
            path,
            "-d",
            "0",
            "-x",
            "1",
            "-w",
            fmt::format("{}", task_.queue_depth * task_.workers),
            "-s",
            fmt::format("{}", task_.bytes),
            "-i",
            fmt::format("{}", task_.block_bytes),
            "-I",
            task_.direction == IoDirection::read ? "0" : "1"};
  }

  std::string program_;
  PeerTask task_;
};

}  // namespace

std::expected<std::unique_ptr<Peer>, std::string> find_gdsio(const PeerTask& task) {
  std::string program = find_program("gdsio");
  if (program.empty() && ::access(kUsualPlace, X_OK) == 0) program = kUsualPlace;
  if (program.empty()) return std::unexpected("gdsio was not found");
  return std::make_unique<Gdsio>(program, task);
}

}  // namespace headrace::cli
