// SPDX-License-Identifier: Apache-2.0
// Our own cost, on the engine that moves nothing: CPU time of the whole process per request and per further block.
// One client thread, one worker.
// The benchmark owns everything it uses.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <headrace/headrace.h>

#include "bench/micro/bench_util.h"

namespace {

using headrace::Buffer;
using headrace::File;
using headrace::FileMode;
using headrace::Handle;
using headrace::ReadItem;
using headrace::ReadRequest;
using headrace::Transfer;
using headrace::bench::must;
using headrace::bench::process_cpu_seconds;

// A file whose name is gone already; null never reads it, but opening and asking for alignments is real.
File scratch_file(uint64_t bytes) {
  std::string path = "./headrace-bench-XXXXXX";
  const int descriptor = ::mkstemp(path.data());
  if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) std::exit(1);
  File file = must(File::open(path, FileMode::update));
  ::unlink(path.c_str());
  ::close(descriptor);
  return file;
}

Handle null_handle(uint64_t block_bytes) {
  return must(Handle::create({.engine = headrace::EngineKind::null, .workers = 1, .block_bytes = block_bytes}));
}

// Separate read() calls, then all results: what one request costs from submission to result.
void BM_RequestsOneByOne(benchmark::State& state) {
  const auto count = static_cast<uint64_t>(state.range(0));
  constexpr uint64_t kBytes = 4096;
  Handle handle = null_handle(1 << 20);
  const File file = scratch_file(count * kBytes);
  const Buffer buffer = must(Buffer::create(count * kBytes));
  std::vector<Transfer> transfers(count);
  double cpu = 0;
  for ([[maybe_unused]] auto _ : state) {
    const double before = process_cpu_seconds();
    for (uint64_t i = 0; i < count; ++i) {
      // Every other block, so that nothing can be merged.
      transfers[i] =
          must(handle.read(file, {.offset_bytes = 2 * i * kBytes, .target = {buffer.data() + i * kBytes, kBytes, {}}}));
    }
    for (const Transfer& transfer : transfers)
      benchmark::DoNotOptimize(must(transfer.result()));
    cpu += process_cpu_seconds() - before;
  }
  state.counters["cpu_us_per_request"] =
      cpu * 1e6 / static_cast<double>(count) / static_cast<double>(state.iterations());
}
BENCHMARK(BM_RequestsOneByOne)->Arg(10'000)->Unit(benchmark::kMillisecond)->UseRealTime();

// The same in one read_many(); `touching` ranges are merged into one job, others are not.
void requests_in_bulk(benchmark::State& state, uint64_t stride) {
  const auto count = static_cast<uint64_t>(state.range(0));
  constexpr uint64_t kBytes = 4096;
  Handle handle = null_handle(1 << 20);
  const File file = scratch_file(count * kBytes);
  const Buffer buffer = must(Buffer::create(count * kBytes));
  std::vector<ReadItem> items;
  for (uint64_t i = 0; i < count; ++i) {
    items.push_back(
        {.file = file,
         .request = {.offset_bytes = stride * i * kBytes, .target = {buffer.data() + i * kBytes, kBytes, {}}}});
  }
  double cpu = 0;
  for ([[maybe_unused]] auto _ : state) {
    const double before = process_cpu_seconds();
    const std::vector<Transfer> transfers = must(handle.read_many(items));
    for (const Transfer& transfer : transfers)
      benchmark::DoNotOptimize(must(transfer.result()));
    cpu += process_cpu_seconds() - before;
  }
  state.counters["cpu_us_per_request"] =
      cpu * 1e6 / static_cast<double>(count) / static_cast<double>(state.iterations());
}
void BM_RequestsInBulkApart(benchmark::State& state) { requests_in_bulk(state, 2); }
void BM_RequestsInBulkTouching(benchmark::State& state) { requests_in_bulk(state, 1); }
BENCHMARK(BM_RequestsInBulkApart)->Arg(10'000)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(BM_RequestsInBulkTouching)->Arg(10'000)->Unit(benchmark::kMillisecond)->UseRealTime();

// One request of many blocks: what a further block costs.
void BM_BlocksOfOneRequest(benchmark::State& state) {
  const auto blocks = static_cast<uint64_t>(state.range(0));
  constexpr uint64_t kBlockBytes = 4096;
  Handle handle = null_handle(kBlockBytes);
  const File file = scratch_file(blocks * kBlockBytes);
  const Buffer buffer = must(Buffer::create(blocks * kBlockBytes));
  double cpu = 0;
  for ([[maybe_unused]] auto _ : state) {
    const double before = process_cpu_seconds();
    const Transfer transfer =
        must(handle.read(file, ReadRequest{.target = buffer.region(), .cache = headrace::CacheMode::bypass}));
    benchmark::DoNotOptimize(must(transfer.result()));
    cpu += process_cpu_seconds() - before;
  }
  state.counters["cpu_ns_per_block"] =
      cpu * 1e9 / static_cast<double>(blocks) / static_cast<double>(state.iterations());
}
BENCHMARK(BM_BlocksOfOneRequest)->Arg(100'000)->Unit(benchmark::kMillisecond)->UseRealTime();

// Making and closing a handle with its default settings.
void BM_HandleCreate(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) {
    Handle handle = must(Handle::create());
    benchmark::DoNotOptimize(handle.is_open());
  }
}
BENCHMARK(BM_HandleCreate)->Unit(benchmark::kMicrosecond)->UseRealTime();

// The first 4 KiB through a fresh handle, its creation not counted.
void BM_FirstTransfer(benchmark::State& state) {
  const File file = scratch_file(1 << 20);
  std::vector<std::byte> memory(4096);
  for ([[maybe_unused]] auto _ : state) {
    state.PauseTiming();
    Handle handle = must(Handle::create());
    state.ResumeTiming();
    const Transfer transfer = must(handle.read(file, {.target = {memory.data(), memory.size(), {}}}));
    benchmark::DoNotOptimize(must(transfer.result()));
    state.PauseTiming();
    handle = Handle();
    state.ResumeTiming();
  }
}
BENCHMARK(BM_FirstTransfer)->Unit(benchmark::kMicrosecond)->UseRealTime()->Iterations(100);

}  // namespace
