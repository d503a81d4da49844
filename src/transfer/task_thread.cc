// SPDX-License-Identifier: Apache-2.0
// A queue, a condition variable and a thread made on demand.
// Any thread posts.
// See the header for ownership.
#include "transfer/task_thread.h"

#include <utility>

#include "os/per_process.h"
#include "os/thread.h"

namespace headrace::transfer {

TaskThread::~TaskThread() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

void TaskThread::post(std::function<void()> task) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable() && !stopping_) {
    Result<std::thread> thread = os::start_thread(name_, [this] { run(); });
    if (thread) thread_ = *std::move(thread);
  }
  if (!thread_.joinable()) {
    lock.unlock();
    task();
    return;
  }
  tasks_.push_back(std::move(task));
  ++posted_;
  lock.unlock();
  changed_.notify_all();
}

void TaskThread::flush() {
  std::unique_lock lock(mutex_);
  const uint64_t target = posted_;
  changed_.wait(lock, [&] { return finished_ >= target; });
}

bool TaskThread::on_this_thread() const noexcept {
  const std::lock_guard lock(mutex_);
  return thread_.get_id() == std::this_thread::get_id();
}

void TaskThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it captured dies here, outside the lock
    lock.lock();
    ++finished_;
    changed_.notify_all();  // flush() may be waiting for this very task, with more behind it
  }
}

TaskThread& dispatcher() {
  static os::PerProcess<TaskThread> thread;
  return thread.get("headrace-call");
}

TaskThread& committer() {
  static os::PerProcess<TaskThread> thread;
  return thread.get("headrace-sync");
}

}  // namespace headrace::transfer
