// SPDX-License-Identifier: Apache-2.0
// Any bytes are read as a geometry and a run of regions; every block of the plan must obey the oracle.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/block_plan_oracle.h"

namespace {

using headrace::test::plan_fault;
using headrace::test::PlanCase;

// Takes numbers off the front; zero once the input is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint64_t take(size_t bytes) {
    uint64_t value = 0;
    const size_t count = bytes < size_ ? bytes : size_;
    std::memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kRegionsMax = 16;
  Input input(data, size);
  PlanCase test;
  const uint64_t shape = input.take(2);
  test.geometry.direct = (shape & 1) != 0;
  test.direction = (shape & 2) != 0 ? headrace::plan::Direction::write : headrace::plan::Direction::read;
  test.straight = static_cast<headrace::plan::Straight>(shape >> 2 & 3);
  test.geometry.granule_bytes = 512U << (shape >> 8 & 15);
  // A granule is never below the alignment of memory.
  test.geometry.memory_align_bytes = std::min(1U << (shape >> 4 & 15), test.geometry.granule_bytes);
  test.geometry.block_bytes = test.geometry.granule_bytes * (input.take(1) + 1);
  test.geometry.staged_block_bytes = test.geometry.granule_bytes * (input.take(1) + 1);
  test.begin = input.take(6);
  const uint64_t bytes_max =
      1024 * (test.geometry.block_bytes < test.geometry.staged_block_bytes ? test.geometry.block_bytes
                                                                           : test.geometry.staged_block_bytes);
  do {
    PlanCase::Piece piece;
    piece.address = input.take(6);
    piece.bytes = input.take(4) % bytes_max + 1;
    test.regions.push_back(piece);
  } while (!input.empty() && test.regions.size() < kRegionsMax);
  if (const auto fault = plan_fault(test)) {
    std::fprintf(stderr, "%s\n", fault->c_str());
    std::abort();
  }
  return 0;
}
