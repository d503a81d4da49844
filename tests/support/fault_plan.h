// SPDX-License-Identifier: Apache-2.0
// Counts operations and fails one of them: run with 0, 1, 2, ... until a run in which nothing was failed.
// Any thread.
// Owns its list of names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headrace::test {

class FaultPlan {
 public:
  // From now on the operation number `index` fails once; the numbering starts again.
  void fail(size_t index, int errno_value) {
    const std::lock_guard lock(mutex_);
    index_ = index;
    errno_value_ = errno_value;
    names_.clear();
  }
  // Every operation of this name fails from now on; an empty name: none does.
  void fail_all(std::string name, int errno_value) {
    const std::lock_guard lock(mutex_);
    all_ = std::move(name);
    errno_value_ = errno_value;
  }
  // The errno with which the operation at hand is to fail, or none.
  std::optional<int> next(const char* name) {
    const std::lock_guard lock(mutex_);
    names_.emplace_back(name);
    if (!all_.empty() && all_ == name) return errno_value_;
    if (index_ && names_.size() - 1 == *index_) return errno_value_;
    return std::nullopt;
  }
  [[nodiscard]] std::vector<std::string> operations() const {
    const std::lock_guard lock(mutex_);
    return names_;
  }
  // The name of the operation that was failed, if the run got there.
  [[nodiscard]] std::optional<std::string> failed() const {
    const std::lock_guard lock(mutex_);
    if (!index_ || *index_ >= names_.size()) return std::nullopt;
    return names_[*index_];
  }

 private:
  mutable std::mutex mutex_;
  std::optional<size_t> index_;
  std::string all_;
  int errno_value_ = 0;
  std::vector<std::string> names_;
};

}  // namespace headrace::test
