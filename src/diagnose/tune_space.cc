// SPDX-License-Identifier: Apache-2.0
// See tune_space.h.
// Any thread; pure.
// Owns nothing.
#include "diagnose/tune_space.h"

#include <algorithm>

#include "base/units.h"

namespace headrace::diagnose {
namespace {

constexpr uint64_t kInFlightBytesMax = 128 * base::kMiB;  // of a handle: docs/architecture.md
constexpr uint32_t kWorkersTried = 8;

template <typename T>
std::vector<T> unique(const std::vector<T>& values) {
  std::vector<T> kept;
  for (const T& value : values)
    if (std::ranges::find(kept, value) == kept.end()) kept.push_back(value);
  return kept;
}

template <typename T>
void fill_in(std::vector<T>& list, std::vector<T> built_in) {
  list = unique(list.empty() ? built_in : list);
}

std::vector<uint32_t> workers_for(uint32_t processors) {
  std::vector<uint32_t> workers;
  // One more than there are processors is tried where there is but one: it may overlap with the kernel's own work.
  for (uint32_t count = 1; count <= std::clamp(processors, 2U, kWorkersTried); count *= 2)
    workers.push_back(count);
  return workers;
}

template <typename Visit>
void each_size(const TuneSpace& space, const TuneSpace& asked, Visit visit) {
  for (const uint64_t block_bytes : space.block_bytes) {
    for (const uint32_t workers : space.workers) {
      bool full = false;  // a lesser depth has already filled what a handle lets through
      for (const uint32_t depth : space.queue_depths) {
        if (full && asked.queue_depths.empty()) break;
        full = block_bytes >= kInFlightBytesMax / depth / workers;
        visit(block_bytes, workers, depth);
      }
    }
  }
}

}  // namespace

TuneSpace complete(const TuneSpace& space, const TuneGround& ground) {
  TuneSpace full = space;
  fill_in(full.engines, ground.engines);
  fill_in(full.workers, workers_for(ground.processors));
  fill_in(full.queue_depths, {8, 32, 128});
  fill_in(full.registered, {Ladder::automatic});
  fill_in(full.orders, {RequestOrder::overlapping});
  fill_in(full.requests, {RequestSize::file});
  if (!full.block_bytes.empty()) {
    full.block_bytes = unique(full.block_bytes);
    return full;
  }
  full.block_bytes = {256 * base::kKiB};
  for (const uint64_t block : {base::kMiB, 4 * base::kMiB, 16 * base::kMiB})
    if (block <= ground.io_bytes) full.block_bytes.push_back(block);
  return full;
}

std::vector<TunePoint> points_of(const TuneSpace& asked, const TuneGround& ground) {
  const TuneSpace space = complete(asked, ground);
  std::vector<TunePoint> points;
  for (const EngineKind engine : space.engines) {
    each_size(space, asked, [&](uint64_t block_bytes, uint32_t workers, uint32_t depth) {
      for (const Ladder registered : space.registered)
        for (const RequestOrder order : space.orders)
          for (const RequestSize request : space.requests)
            points.push_back({engine, block_bytes, depth, workers, registered, order, request});
    });
  }
  return points;
}

// Lists have at most kTunePointsMax values, and those of names far fewer: no overflow.
uint64_t count_points(const TuneSpace& asked, const TuneGround& ground) {
  const TuneSpace space = complete(asked, ground);
  uint64_t sizes = 0;
  if (asked.queue_depths.empty())
    each_size(space, asked, [&](uint64_t, uint32_t, uint32_t) { ++sizes; });
  else
    sizes = uint64_t{space.block_bytes.size()} * space.workers.size() * space.queue_depths.size();
  return sizes * space.engines.size() * space.registered.size() * space.orders.size() * space.requests.size();
}

std::vector<TunePoint> neighbours_of(const TunePoint& point, const TuneSpace& asked, uint64_t io_bytes) {
  std::vector<TunePoint> all;
  const auto add = [&](auto change) {
    TunePoint other = point;
    change(other);
    all.push_back(other);
  };
  if (asked.block_bytes.empty() && point.block_bytes != 0) {
    if (point.block_bytes / 2 >= kBlockBytesMin) add([](TunePoint& p) { p.block_bytes /= 2; });
    if (point.block_bytes * 2 <= std::min(kBlockBytesMax, io_bytes)) add([](TunePoint& p) { p.block_bytes *= 2; });
  }
  if (asked.queue_depths.empty() && point.queue_depth != 0) {
    if (point.queue_depth > 1) add([](TunePoint& p) { p.queue_depth /= 2; });
    if (point.queue_depth * 2 <= kQueueDepthMax) add([](TunePoint& p) { p.queue_depth *= 2; });
  }
  if (asked.registered.empty() && point.engine == EngineKind::uring)
    add([](TunePoint& p) { p.registered = p.registered == Ladder::never ? Ladder::automatic : Ladder::never; });
  return all;
}

}  // namespace headrace::diagnose
