// SPDX-License-Identifier: Apache-2.0
// One object per process: a child made by fork gets a fresh one at first use.
// Any thread.
// Never destroyed. A parent's object stays where it is in the child: its lock may have been held at the fork, its threads
// do not exist there.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <utility>

#include "os/process_id.h"

namespace headrace::os {

template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() noexcept = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  // This process's object, made of `arguments` if there is none yet. Of two threads that make one, one's is dropped.
  template <typename... Arguments>
  [[nodiscard]] T& get(const Arguments&... arguments) {
    const pid_t process = process_id();
    Entry* entry = current_.load(std::memory_order_acquire);
    while (entry == nullptr || entry->process != process) {
      auto fresh = std::make_unique<Entry>(process, arguments...);
      if (current_.compare_exchange_strong(entry, fresh.get(), std::memory_order_acq_rel))
        return fresh.release()->value;
    }
    return entry->value;
  }

  // The same, or null where there is none yet.
  [[nodiscard]] T* find() noexcept {
    Entry* entry = current_.load(std::memory_order_acquire);
    return entry != nullptr && entry->process == process_id() ? &entry->value : nullptr;
  }

 private:
  struct Entry {
    template <typename... Arguments>
    explicit Entry(pid_t owner, const Arguments&... arguments) : process(owner), value(arguments...) {}
    const pid_t process;
    T value;
  };
  std::atomic<Entry*> current_ = nullptr;  // stored by get() with what it made
};

}  // namespace headrace::os
