// SPDX-License-Identifier: Apache-2.0
// A torch file's object, pickled again for another container: the same object, whose storages have other names.
// Any thread: a pure function.
// Owns what it returns.
#pragma once

#include <functional>
#include <string>

#include <headrace/pickle.h>

namespace headrace::convert {

// The two forms of a storage's persistent id.
enum class StorageIds : uint8_t {
  zip,     // ("storage", type, key, location, numel)
  legacy,  // and a view, which is None
};

// `key_of` gives the new key of a storage. Nothing is run: classes that nobody knows are named again as they were. Fails with
// ErrorCode::unavailable for what protocol 2 as written here cannot say: strings of Python 2, and tuples that hold themselves.
[[nodiscard]] Result<std::string> rewrite_pickle(const Pickle& pickle, StorageIds ids,
                                                 const std::function<std::string(const PickleStorage&)>& key_of);

}  // namespace headrace::convert
