// SPDX-License-Identifier: Apache-2.0
// One thread that runs tasks in order: user callbacks and log records (the dispatcher), or atomic commits (the committer).
// Any thread posts; tasks run on the thread, which starts at the first post.
// Owns its thread. A task owns what it captures.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace headrace::transfer {

class TaskThread {
 public:
  explicit TaskThread(const char* name) noexcept : name_(name) {}
  // Runs what was posted, then joins; never from a task.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Where no thread can be had, the task runs in the caller.
  void post(std::function<void()> task);
  // Waits until everything posted before has run. Not from a task.
  void flush();
  [[nodiscard]] bool on_this_thread() const noexcept;

 private:
  void run();

  const char* name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  uint64_t posted_ = 0;                      // guarded by mutex_
  uint64_t finished_ = 0;                    // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::thread thread_;                       // guarded by mutex_
};

// The thread on which callbacks and log records run: one per process, never destroyed, since callbacks may come after main().
// A forked child has its own.
[[nodiscard]] TaskThread& dispatcher();
// The thread on which atomic files are synced and renamed; apart, so that no callback waits for a disk. One per process likewise.
[[nodiscard]] TaskThread& committer();

}  // namespace headrace::transfer
