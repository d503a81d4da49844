// SPDX-License-Identifier: Apache-2.0
// Results for people.
// One thread.
// Owns nothing.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench.h"
#include "units.h"

namespace headrace::cli {
namespace {

std::string percent(uint64_t part, uint64_t whole) {
  constexpr double kPercent = 100;
  return fmt::format("{:.{}f} %", whole == 0 ? 0 : kPercent * static_cast<double>(part) / static_cast<double>(whole),
                     part == 0 || part == whole ? 0 : 1);
}

void print_cache(Console& console, const IoResult& result) {
  if (!result.cold) {
    if (result.settings.direction == IoDirection::read && result.settings.engine != EngineKind::null)
      console.line("  cold: not known, the kernel does not tell what is in the page cache");
    return;
  }
  uint64_t resident = 0;
  for (const IoSample& sample : result.samples)
    resident = std::max(resident, sample.resident_bytes.value_or(0));
  const std::string share = percent(resident, result.samples.front().bytes);
  const bool direct = result.totals.direct_bytes == result.totals.bytes;
  if (*result.cold) {
    console.line(fmt::format("  cold: yes (at most {} sat in the page cache before a repeat)", share));
  } else {
    console.line(fmt::format("  cold: no, {} sat in the page cache before a repeat{}", share,
                             direct ? ", but was read from the device" : " and was read from there"));
  }
}

void print_route(Console& console, const IoResult& result) {
  const DirectionStats& totals = result.totals;
  std::string route = fmt::format("  route: {} direct, {} registered", percent(totals.direct_bytes, totals.bytes),
                                  percent(totals.registered_bytes, totals.bytes));
  if (totals.staged_bytes != 0) route += fmt::format(", {} copied", percent(totals.staged_bytes, totals.bytes));
  console.line(route);
  if (!result.why.empty()) console.line(fmt::format("    {}", printable(result.why)));
  uint64_t device = 0;
  for (const IoSample& sample : result.samples) {
    if (!sample.device_bytes) return;
    device += *sample.device_bytes;
  }
  console.line(fmt::format("  moved: {} by the handle's count, {} by the kernel's (/proc/self/io)",
                           show_bytes(totals.bytes), show_bytes(device)));
}

}  // namespace

Progress TotalProgress::progress() {
  return {.show = [this](const ProgressNow& now) { show(now); }, .interrupted = inner_.interrupted};
}

void TotalProgress::show(const ProgressNow& now) {
  inner_.show({.what = now.what,
               .done_bytes = std::min(done_bytes_ + now.done_bytes, total_bytes_),
               .total_bytes = total_bytes_});
}

std::string show_size(uint64_t bytes) {
  static constexpr std::array<std::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  constexpr uint64_t kStep = 1024;
  size_t name = 0;
  while (bytes >= kStep && bytes % kStep == 0 && name + 1 < kNames.size()) {
    bytes /= kStep;
    ++name;
  }
  return name == 0 && bytes >= 1'000'000 ? show_bytes(bytes) : fmt::format("{} {}", bytes, kNames[name]);
}

std::string show_spread(const Spread& spread, int decimals) {
  if (spread.count < 2) return fmt::format("{:.{}f}", spread.median, decimals);
  return fmt::format("{:.{}f} ({:.{}f}..{:.{}f})", spread.median, decimals, spread.min, decimals, spread.max, decimals);
}

std::string show_latency(uint64_t nanoseconds) {
  const auto value = static_cast<double>(nanoseconds);
  if (nanoseconds < 1'000'000) return fmt::format("{:.0f} µs", value / 1e3);
  if (nanoseconds < 1'000'000'000) return fmt::format("{:.2f} ms", value / 1e6);
  return fmt::format("{:.2f} s", value / 1e9);
}

std::string show_place(const BenchmarkPlace& place) {
  std::string text = printable(place.path);
  std::vector<std::string> facts;
  if (!place.file_system.empty()) facts.push_back(printable(place.file_system));
  if (!place.device.empty()) facts.push_back(fmt::format("on {}", printable(place.device)));
  if (!place.device_model.empty()) facts.push_back(printable(place.device_model));
  if (!facts.empty()) text += fmt::format(" ({})", fmt::join(facts, " "));
  return text;
}

std::string show_settings(const IoResult& result) {
  const HandleFacts& facts = result.handle;
  const IoSettings& settings = result.settings;
  std::string text =
      fmt::format("{}, {} blocks, depth {}, {} worker{}", engine_name(facts.engine), show_size(facts.block_bytes),
                  facts.queue_depth, facts.workers, facts.workers == 1 ? "" : "s");
  if (settings.request == RequestSize::block) text += ", a request for each block";
  if (settings.order == RequestOrder::in_batches) text += ", in batches";
  if (settings.files_at_once > 1) text += fmt::format(", {} files at once", settings.files_at_once);
  if (settings.direction == IoDirection::write)
    text += settings.durability == Durability::data ? ", durable (sync in the time)" : ", not durable (no sync)";
  return text;
}

void print_facts(Console& console, const IoResult& result) {
  if (result.samples.empty()) return;
  const DirectionStats& totals = result.totals;
  print_cache(console, result);
  print_route(console, result);
  console.line(fmt::format("  memory: {} reused, {} of it on huge pages", show_bytes(result.memory_bytes),
                           percent(result.memory_huge_bytes, result.memory_bytes)));
  if (totals.requests > result.samples.size() * result.settings.files_at_once) {
    console.line(fmt::format("  latency of {} requests: half within {}, 90 % {}, 99 % {}, 99.9 % {}, all {}",
                             show_count(totals.requests), show_latency(totals.latency_ns[0]),
                             show_latency(totals.latency_ns[1]), show_latency(totals.latency_ns[2]),
                             show_latency(totals.latency_ns[3]), show_latency(totals.latency_ns[4])));
  }
  if (result.validated_bytes != 0)
    console.line(fmt::format("  validated: {} compared, all right", show_bytes(result.validated_bytes)));
}

}  // namespace headrace::cli
