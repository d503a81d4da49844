// SPDX-License-Identifier: Apache-2.0
// Starting, waking and stopping the thread whose work is in worker_loop.cc.
// Any thread.
// See the header for ownership.
#include "transfer/worker.h"

#include <condition_variable>
#include <utility>

#include "os/thread.h"
#include "transfer/worker_loop.h"

namespace headrace::transfer {

Result<engine::Caps> Worker::start(const std::shared_ptr<HandleState>& handle, const engine::EngineFactory& factory) {
  struct Verdict {
    std::mutex mutex;
    std::condition_variable given;
    bool known = false;
    Result<engine::Caps> caps;
  };
  const auto verdict = std::make_shared<Verdict>();
  const auto give = [verdict](Result<engine::Caps> caps) {
    const std::lock_guard lock(verdict->mutex);
    verdict->caps = std::move(caps);
    verdict->known = true;
    verdict->given.notify_all();
  };
  Result<std::thread> thread = os::start_thread("headrace-io", [this, handle, factory, give] {
    const std::shared_ptr<HandleState> holder = handle;  // the worker is the handle's, so this keeps `this` too
    Result<std::unique_ptr<engine::Engine>> engine = factory({.depth = options_.depth});
    if (!engine) {
      give(std::unexpected(std::move(engine).error()));
      return;
    }
    Result<std::unique_ptr<WorkerLoop>> loop = WorkerLoop::create(*this, *holder, **engine);
    if (!loop) {
      give(std::unexpected(std::move(loop).error()));
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      engine_ = engine->get();
    }
    give((*engine)->caps());
    (*loop)->run();
    {
      const std::lock_guard lock(mutex_);
      engine_ = nullptr;
    }
    loop->reset();
  });
  if (!thread) return std::unexpected(std::move(thread).error());
  thread_ = *std::move(thread);
  std::unique_lock lock(verdict->mutex);
  verdict->given.wait(lock, [&] { return verdict->known; });
  return verdict->caps;
}

void Worker::stop() noexcept {
  stopping_.store(true, std::memory_order_seq_cst);
  wake_engine();
}

void Worker::join() {
  if (thread_.joinable()) thread_.join();
}

void Worker::detach() {
  if (thread_.joinable()) thread_.detach();
}

bool Worker::wake_if_waiting() noexcept {
  if (!waiting_.load(std::memory_order_seq_cst) || !waiting_.exchange(false, std::memory_order_seq_cst)) return false;
  wake_engine();
  return true;
}

void Worker::buffer_gone(uint64_t buffer_id) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (engine_ == nullptr) return;
    gone_buffers_.push_back(buffer_id);
    mail_.store(true, std::memory_order_release);
  }
  wake_engine();
}

void Worker::wake_engine() noexcept {
  const std::lock_guard lock(mutex_);
  if (engine_ != nullptr) engine_->wake();
}

}  // namespace headrace::transfer
