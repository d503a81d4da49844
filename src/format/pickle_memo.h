// SPDX-License-Identifier: Apache-2.0
// The memo of an unpickler: which node was put under which index.
// One thread.
// Owns its tables, which hold at most one entry for each put.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <headrace/pickle.h>

namespace headrace::format {

inline constexpr PickleNode kNoNode = UINT32_MAX;

// Where memo indices are mostly 0, 1, 2, ... Never larger than the number of puts, whatever the indices are.
class PickleMemo {
 public:
  void put(uint32_t index, PickleNode node) {
    if (index < dense_.size())
      dense_[index] = node;
    else if (index == dense_.size())
      dense_.push_back(node);  // from now on this one counts, even if sparse_ has the index too
    else
      sparse_[index] = node;  // a tree: a file cannot choose indices that make it slow
  }
  PickleNode get(uint32_t index) const {
    if (index < dense_.size()) return dense_[index];
    const auto found = sparse_.find(index);
    return found == sparse_.end() ? kNoNode : found->second;
  }

 private:
  std::vector<PickleNode> dense_;
  std::map<uint32_t, PickleNode> sparse_;
};

}  // namespace headrace::format
