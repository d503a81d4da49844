// SPDX-License-Identifier: Apache-2.0
// One shared sink behind a mutex.
// Any thread.
// Never destroyed: records may come after main().
#include "transfer/log.h"

#include <memory>
#include <mutex>
#include <utility>

#include "transfer/task_thread.h"

namespace headrace {
namespace {

using Sink = std::function<void(const LogRecord&)>;
struct SharedSink {
  std::mutex mutex;
  std::shared_ptr<const Sink> sink;  // guarded by mutex
};

SharedSink& shared_sink() {
  static SharedSink* const sink = new SharedSink;
  return *sink;
}

std::shared_ptr<const Sink> current_sink() {
  SharedSink& shared = shared_sink();
  const std::lock_guard lock(shared.mutex);
  return shared.sink;
}

}  // namespace

void set_log_sink(std::function<void(const LogRecord&)> sink) {
  std::shared_ptr<const Sink> fresh = sink ? std::make_shared<const Sink>(std::move(sink)) : nullptr;
  SharedSink& shared = shared_sink();
  const std::lock_guard lock(shared.mutex);
  shared.sink = std::move(fresh);
}

void flush_dispatcher() { transfer::dispatcher().flush(); }

namespace transfer {

void log(LogLevel level, std::string message) {
  if (current_sink() == nullptr) return;
  dispatcher().post([record = LogRecord{level, std::move(message)}] {
    if (const std::shared_ptr<const Sink> sink = current_sink()) (*sink)(record);
  });
}

}  // namespace transfer
}  // namespace headrace
