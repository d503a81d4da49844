// SPDX-License-Identifier: Apache-2.0
// Lists by priority with a bitmap of those that have jobs, and the cut of the next block of the first job.
// Any thread.
// See the header for ownership.
#include "transfer/request_queue.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/align.h"
#include "base/check.h"
#include "transfer/open_file.h"
#include "transfer/transfer_state.h"

namespace headrace::transfer {

namespace {

// The parts of one owner follow each other. Found by halving: thousands of owners of one job may fail one after another.
std::span<Part> parts_of(Job& job, const TransferState& owner) {
  const auto first =
      std::ranges::partition_point(job.parts, [&](const Part& part) { return part.begin < owner.offset_bytes(); });
  const auto last = std::find_if(first, job.parts.end(), [&](const Part& part) { return part.owner.get() != &owner; });
  return {first, last};
}

}  // namespace

RequestQueue::~RequestQueue() {
  for (List& list : lists_) {
    while (list.first != nullptr)
      unlink(*list.first);
  }
}

void RequestQueue::push(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  link(std::move(job), false);
}

void RequestQueue::push_front(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  link(std::move(job), true);
}

size_t RequestQueue::take(std::span<QueuedBlock> blocks, uint64_t bytes_max) {
  size_t count = 0;
  uint64_t bytes = 0;
  const std::lock_guard lock(mutex_);
  while (count < blocks.size() && bytes < bytes_max) {
    Job* job = highest();
    if (job == nullptr) break;
    if (job->datasync) {
      blocks[count++] = {.job = job->self, .plan = {}, .part = 0};
      unlink(*job);
      continue;
    }
    if (skip_dropped(*job)) {
      blocks[count] = cut(*job);
      bytes += blocks[count].plan.io_end - blocks[count].plan.io_begin;
      ++count;
    }
    if (!skip_dropped(*job)) unlink(*job);
  }
  return count;
}

uint64_t RequestQueue::drop(Job& job, const TransferState& owner, uint64_t& first) {
  const std::lock_guard lock(mutex_);
  uint64_t dropped = 0;
  first = UINT64_MAX;
  for (Part& part : parts_of(job, owner)) {
    if (part.dropped || !job.queued || part.end <= job.position) continue;
    const uint64_t from = std::max(part.begin, job.position);
    part.dropped = true;
    dropped += part.end - from;
    first = std::min(first, from);
  }
  job.run_end = 0;
  if (job.queued && !skip_dropped(job)) unlink(job);
  return dropped;
}

bool RequestQueue::drop_unless_started(Job& job, TransferState& owner) {
  const std::lock_guard lock(mutex_);
  if (owner.started() || !job.queued) return false;
  const std::span<Part> parts = parts_of(job, owner);
  if (std::ranges::any_of(parts, &Part::dropped)) return false;  // abort() was first
  for (Part& part : parts)
    part.dropped = true;
  job.run_end = 0;
  if (!skip_dropped(job)) unlink(job);
  return true;
}

std::vector<std::shared_ptr<TransferState>> RequestQueue::waiting(plan::Direction direction) const {
  std::vector<std::shared_ptr<TransferState>> owners;
  const std::lock_guard lock(mutex_);
  for (const List& list : lists_) {
    for (const Job* job = list.first; job != nullptr; job = job->next) {
      if (job->direction != direction || job->datasync) continue;
      for (const Part& part : job->parts) {
        if (!part.dropped && part.end > job->position) owners.push_back(part.owner);
      }
    }
  }
  return owners;
}

void RequestQueue::link(std::shared_ptr<Job> job, bool front) {
  HEADRACE_CHECK(!job->queued);
  Job* raw = job.get();
  raw->self = std::move(job);
  raw->queued = true;
  const auto level = static_cast<uint32_t>(raw->priority - kPriorityMin);
  List& list = lists_[level];
  if (front) {
    raw->next = std::exchange(list.first, raw);
    (raw->next != nullptr ? raw->next->previous : list.last) = raw;
  } else {
    raw->previous = std::exchange(list.last, raw);
    (raw->previous != nullptr ? raw->previous->next : list.first) = raw;
  }
  occupied_[level / 64] |= uint64_t{1} << (level % 64);
  size_.fetch_add(1, std::memory_order_seq_cst);
}

void RequestQueue::unlink(Job& job) {
  const auto level = static_cast<uint32_t>(job.priority - kPriorityMin);
  List& list = lists_[level];
  (job.previous != nullptr ? job.previous->next : list.first) = job.next;
  (job.next != nullptr ? job.next->previous : list.last) = job.previous;
  job.next = nullptr;
  job.previous = nullptr;
  job.queued = false;
  if (list.first == nullptr) occupied_[level / 64] &= ~(uint64_t{1} << (level % 64));
  size_.fetch_sub(1, std::memory_order_seq_cst);
  const std::shared_ptr<Job> last_reference = std::move(job.self);  // `job` may die here
}

Job* RequestQueue::highest() const {
  for (size_t word = occupied_.size(); word-- > 0;) {
    if (occupied_[word] == 0) continue;
    return lists_[word * 64 + 63 - static_cast<uint32_t>(std::countl_zero(occupied_[word]))].first;
  }
  return nullptr;
}

bool RequestQueue::skip_dropped(Job& job) const {
  while (job.part < job.parts.size()) {
    const Part& part = job.parts[job.part];
    if (!part.dropped && job.position < part.end) return true;
    job.position = std::max(job.position, part.end);
    ++job.part;
  }
  return false;
}

QueuedBlock RequestQueue::cut(Job& job) const {
  const Part& part = job.parts[job.part];
  const uint64_t position = std::max(job.position, part.begin);
  if (job.run_end <= position) {
    job.run_end = part.end;
    // Memory that must not be copied ends a run, lest it be staged together with a neighbour's.
    const auto never_copied = [](const Part& one) { return one.straight == plan::Straight::always; };
    for (size_t i = job.part + 1; i < job.parts.size() && !job.parts[i].dropped; ++i) {
      if (never_copied(job.parts[i]) != never_copied(part)) break;
      job.run_end = job.parts[i].end;
    }
  }
  // Parts whose memory follows on, of one kind, are one region to the kernel.
  uint64_t region_end = part.end;
  for (size_t i = job.part + 1;
       i < job.parts.size() && region_end < job.run_end && region_end - position < sizes_.block_bytes; ++i) {
    const Part& before = job.parts[i - 1];
    const Part& after = job.parts[i];
    if (after.data != before.data + (before.end - before.begin) || after.straight != before.straight ||
        after.buffer_id != before.buffer_id)
      break;
    region_end = after.end;
  }

  plan::Geometry geometry = {.block_bytes = sizes_.block_bytes, .staged_block_bytes = sizes_.staged_block_bytes};
  if (job.direct_wanted && job.file->direct_descriptor() >= 0) {
    geometry.direct = true;
    geometry.memory_align_bytes = job.file->alignment().memory_bytes;
    geometry.granule_bytes = job.file->granule_bytes();
    // Where the file needs larger granules than the settings allow for, the settings give way; a staging slot cannot.
    geometry.block_bytes = base::align_up(geometry.block_bytes, geometry.granule_bytes);
    geometry.staged_block_bytes = base::align_down(geometry.staged_block_bytes, geometry.granule_bytes);
    if (geometry.staged_block_bytes == 0)
      geometry = {.block_bytes = sizes_.block_bytes, .staged_block_bytes = sizes_.staged_block_bytes};
  }
  QueuedBlock block;
  block.job = job.self;
  block.part = job.part;
  block.plan = plan::next_block(geometry, job.direction, part.straight,
                                {.position = position,
                                 .end = job.run_end,
                                 .region_end = region_end,
                                 .address = reinterpret_cast<uintptr_t>(part.data) + (position - part.begin)});
  for (size_t i = job.part; i < job.parts.size() && job.parts[i].begin < block.plan.end; ++i)
    job.parts[i].owner->mark_started();
  job.position = block.plan.end;
  return block;
}

}  // namespace headrace::transfer
