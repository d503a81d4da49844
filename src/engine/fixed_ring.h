// SPDX-License-Identifier: Apache-2.0
// A first-in first-out queue of plain values with a capacity fixed at construction.
// One thread at a time.
// Owns its items.
#pragma once

#include <cstddef>
#include <memory>

#include "base/check.h"

namespace headrace::engine {

template <class T>
class FixedRing {
 public:
  explicit FixedRing(size_t capacity) : items_(std::make_unique<T[]>(capacity)), capacity_(capacity) {}

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] size_t size() const noexcept { return size_; }

  // The caller counts what it puts in: a full ring is a bug, not a state.
  void push(const T& item) noexcept {
    HEADRACE_CHECK(size_ < capacity_);
    const size_t tail = first_ + size_;
    items_[tail < capacity_ ? tail : tail - capacity_] = item;
    ++size_;
  }

  [[nodiscard]] T pop() noexcept {
    HEADRACE_CHECK(size_ > 0);
    const T item = items_[first_];
    first_ = first_ + 1 < capacity_ ? first_ + 1 : 0;
    --size_;
    return item;
  }

 private:
  std::unique_ptr<T[]> items_;
  size_t capacity_ = 0;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace headrace::engine
