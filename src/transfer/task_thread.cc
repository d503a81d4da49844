// SPDX-License-Identifier: Apache-2.0
// A queue, a condition variable and a thread made on demand.
// Any thread posts.
// See the header for ownership.
#include "transfer/task_thread.h"

#include <atomic>
#include <utility>

#include "os/process_id.h"
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

namespace {

struct ProcessThread {
  ProcessThread(pid_t owner, const char* name) : process(owner), thread(name) {}
  const pid_t process;
  TaskThread thread;
};

TaskThread& thread_of_this_process(std::atomic<ProcessThread*>& current, const char* name) {
  const pid_t process = os::process_id();
  ProcessThread* entry = current.load(std::memory_order_acquire);
  while (entry == nullptr || entry->process != process) {
    auto fresh = std::make_unique<ProcessThread>(process, name);
    // A parent's entry, seen in a child, is left where it is: its thread does not exist here.
    if (current.compare_exchange_strong(entry, fresh.get(), std::memory_order_acq_rel)) return fresh.release()->thread;
  }
  return entry->thread;
}

}  // namespace

TaskThread& dispatcher() {
  static std::atomic<ProcessThread*> current = nullptr;
  return thread_of_this_process(current, "headrace-call");
}

TaskThread& committer() {
  static std::atomic<ProcessThread*> current = nullptr;
  return thread_of_this_process(current, "headrace-sync");
}

}  // namespace headrace::transfer
