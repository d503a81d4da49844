// SPDX-License-Identifier: Apache-2.0
// headrace_random_read FILE [--block=4096] [--depth=32] [--ahead=256] [--workers=1] [--seconds=5]
// Reads blocks at random places of a file for so long and prints a JSON object: requests, seconds, cpu_seconds, and the
// route of the last request. The device holds `depth` blocks at most; the client keeps `ahead` requests handed in, waits
// for the middle one, and replaces what is done by one bulk call.
// One client thread. The program owns everything it uses.
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <headrace/headrace.h>

#include "bench/micro/bench_util.h"

namespace {

using headrace::Buffer;
using headrace::File;
using headrace::FileMode;
using headrace::Handle;
using headrace::ReadItem;
using headrace::Route;
using headrace::Transfer;
using headrace::bench::fail;
using headrace::bench::must;
using headrace::bench::process_cpu_seconds;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string path;
  uint64_t block_bytes = 4096;
  uint64_t depth = 32;
  uint64_t ahead = 256;
  uint64_t workers = 1;
  uint64_t seconds = 5;
};

struct Report {
  uint64_t requests = 0;
  double seconds = 0;
  double cpu_seconds = 0;
  Route route;
};

Settings parse(int count, char** words) {
  Settings settings;
  const struct {
    std::string_view name;
    uint64_t& value;
  } numbers[] = {{"--block=", settings.block_bytes},
                 {"--depth=", settings.depth},
                 {"--ahead=", settings.ahead},
                 {"--workers=", settings.workers},
                 {"--seconds=", settings.seconds}};
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    bool known = false;
    for (const auto& number : numbers) {
      if (!word.starts_with(number.name)) continue;
      const std::string_view text = word.substr(number.name.size());
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number.value);
      known = error == std::errc() && end == text.data() + text.size() && number.value > 0;
    }
    if (!known && word.starts_with("-"))
      fail("headrace_random_read: no such option, or not a positive number: " + std::string(word));
    if (!known) settings.path = word;
  }
  if (settings.path.empty()) fail("headrace_random_read: a file to read is missing");
  return settings;
}

// A window of requests: those that are done are replaced by new ones in one submission.
Report run(const Settings& settings) {
  const File file = must(File::open(settings.path, FileMode::read));
  const uint64_t blocks = must(file.size_bytes()) / settings.block_bytes;
  if (blocks == 0) fail(settings.path + " is shorter than one block");
  const Buffer buffer = must(Buffer::create(settings.ahead * settings.block_bytes));
  Handle handle = must(Handle::create(
      {.workers = static_cast<uint32_t>(settings.workers), .queue_depth = static_cast<uint32_t>(settings.depth)}));
  std::mt19937_64 random(std::random_device{}());
  std::uniform_int_distribution<uint64_t> any_block(0, blocks - 1);
  const auto item = [&](uint64_t slot) {
    return ReadItem{.file = file,
                    .request = {.offset_bytes = any_block(random) * settings.block_bytes,
                                .target = {buffer.data() + slot * settings.block_bytes, settings.block_bytes, {}}}};
  };

  std::vector<Transfer> window(settings.ahead);
  std::vector<uint64_t> slots(settings.ahead);  // whose requests are to be sent
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<uint64_t> waiting;  // whose requests are unfinished, the oldest first
  std::vector<ReadItem> items;
  const auto send = [&] {
    items.clear();
    for (const uint64_t slot : slots)
      items.push_back(item(slot));
    std::vector<Transfer> sent = must(handle.read_many(items));
    for (size_t i = 0; i < slots.size(); ++i)
      window[slots[i]] = std::move(sent[i]);
    waiting.insert(waiting.end(), slots.begin(), slots.end());
    slots.clear();
  };
  const auto collect = [&](uint64_t slot) {
    if (must(window[slot].result()) != settings.block_bytes) fail("a short read");
    slots.push_back(slot);
    return true;
  };

  Report report;
  const double cpu_before = process_cpu_seconds();
  const Clock::time_point start = Clock::now();
  const Clock::time_point end = start + std::chrono::seconds(settings.seconds);
  for (send(); Clock::now() < end; send()) {
    std::ignore = window[waiting[waiting.size() / 2]].result();  // waits
    std::erase_if(waiting, [&](uint64_t slot) { return window[slot].done() && collect(slot); });
    report.requests += slots.size();
  }
  for (const uint64_t slot : waiting)
    collect(slot);
  report.requests += waiting.size();
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.cpu_seconds = process_cpu_seconds() - cpu_before;
  report.route = window[0].route().value_or(Route{});
  return report;
}

}  // namespace

int main(int count, char** words) {
  const Settings settings = parse(count, words);
  const Report report = run(settings);
  std::printf(R"({"requests": %llu, "block_bytes": %llu, "seconds": %.6f, "cpu_seconds": %.6f, )"
              R"("route": {"engine": "%s", "direct": %s, "registered": %s, "staged": %s}})"
              "\n",
              static_cast<unsigned long long>(report.requests), static_cast<unsigned long long>(settings.block_bytes),
              report.seconds, report.cpu_seconds, std::string(headrace::engine_name(report.route.engine)).c_str(),
              report.route.direct_bytes > 0 ? "true" : "false", report.route.registered_bytes > 0 ? "true" : "false",
              report.route.staged_bytes > 0 ? "true" : "false");
  return 0;
}
