// SPDX-License-Identifier: Apache-2.0
// One sink behind an atomic pointer.
// Any thread.
// Never destroyed: records may come after main().
#include "transfer/log.h"

#include <atomic>
#include <utility>

#include "transfer/task_thread.h"

namespace headrace {
namespace {

struct Sink {
  std::function<void(const LogRecord&)> call;
  const Sink* replaced;  // stays: a record may be on its way to it, and programs set a sink once or twice
};
// A bare pointer, because a lock held at a fork would hang the child's first record.
std::atomic<const Sink*> current_sink = nullptr;

}  // namespace

void set_log_sink(std::function<void(const LogRecord&)> sink) {
  auto* fresh = new Sink{std::move(sink), current_sink.load(std::memory_order_acquire)};
  while (!current_sink.compare_exchange_weak(fresh->replaced, fresh, std::memory_order_acq_rel)) {
  }
}

void flush_dispatcher() { transfer::dispatcher().flush(); }

namespace transfer {

void log(LogLevel level, std::string message) {
  const Sink* set = current_sink.load(std::memory_order_acquire);
  if (set == nullptr || !set->call) return;
  dispatcher().post([record = LogRecord{level, std::move(message)}] {
    const Sink* sink = current_sink.load(std::memory_order_acquire);
    if (sink->call) sink->call(record);
  });
}

}  // namespace transfer
}  // namespace headrace
