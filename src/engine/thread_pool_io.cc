// SPDX-License-Identifier: Apache-2.0
// See thread_pool_io.h.
// work() runs on the helper threads, everything else on the owner.
// Owns the threads.
#include "engine/thread_pool_io.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>

#include "os/thread.h"

namespace headrace::engine {
namespace {

ssize_t call_once(const Block& block) {
  const auto offset = static_cast<off_t>(block.offset_bytes);  // beyond 2^63: negative, so EINVAL
  switch (block.operation) {
    case Operation::read: return ::pread(block.descriptor, block.data, block.length_bytes, offset);
    case Operation::write: return ::pwrite(block.descriptor, block.data, block.length_bytes, offset);
    case Operation::datasync: return ::fdatasync(block.descriptor);
  }
  errno = EINVAL;
  return -1;
}

int64_t perform(const Block& block) {
  for (;;) {
    const ssize_t result = call_once(block);
    if (result >= 0) return result;
    if (errno != EINTR) return -int64_t{errno};
  }
}

}  // namespace

IoThreads::IoThreads(uint32_t depth, WakeEvent& event)
    : depth_(depth), threads_max_(std::min(depth, kThreadsMax)), event_(event), queued_(depth), done_(depth) {}

IoThreads::~IoThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

Status IoThreads::start_first() {
  Result<std::thread> thread = os::start_thread("headrace-io", [this] { work(); });
  if (!thread) return std::unexpected(std::move(thread).error());
  threads_[threads_started_++] = *std::move(thread);
  return {};
}

size_t IoThreads::submit(std::span<const Block> blocks) {
  const size_t accepted = std::min<size_t>(blocks.size(), depth_ - in_flight_);
  if (accepted == 0) return 0;
  size_t without_thread = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const Block& block : blocks.first(accepted))
      queued_.push(block);
    without_thread = queued_.size() - std::min<size_t>(queued_.size(), idle_);
  }
  in_flight_ += static_cast<uint32_t>(accepted);
  for (size_t i = 0; i < std::min<size_t>(accepted, threads_started_); ++i)
    work_ready_.notify_one();
  start_threads(without_thread);
  return accepted;
}

size_t IoThreads::reap(std::span<Completion> completions) {
  if (in_flight_ == 0) return 0;
  const std::lock_guard lock(mutex_);
  const size_t count = std::min(completions.size(), done_.size());
  for (Completion& completion : completions.first(count))
    completion = done_.pop();
  in_flight_ -= static_cast<uint32_t>(count);
  return count;
}

void IoThreads::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    work_ready_.wait(lock, [this] { return stopping_ || !queued_.empty(); });
    --idle_;
    if (queued_.empty()) return;
    const Block block = queued_.pop();
    lock.unlock();
    const int64_t result = perform(block);
    lock.lock();
    done_.push({.cookie = block.cookie, .result = result});
    if (done_.size() == 1) event_.signal();
  }
}

// A thread that cannot be had is no error while another one is there.
void IoThreads::start_threads(size_t wanted) {
  const size_t count = std::min<size_t>(wanted, threads_max_ - threads_started_);
  for (size_t i = 0; i < count; ++i) {
    if (start_first().has_value()) continue;
    if (threads_started_ == 0) fail_queued();
    return;
  }
}

void IoThreads::fail_queued() {
  const std::lock_guard lock(mutex_);
  while (!queued_.empty())
    done_.push({.cookie = queued_.pop().cookie, .result = -EAGAIN});
  event_.signal();
}

}  // namespace headrace::engine
