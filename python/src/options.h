// SPDX-License-Identifier: Apache-2.0
// From the words of Python keywords to the enums of the library. An unknown word raises ValueError and names the known ones.
// Needs the GIL.
// Owns nothing.
#pragma once

#include <optional>
#include <string>

#include <nanobind/nanobind.h>

#include <headrace/buffer.h>
#include <headrace/file.h>
#include <headrace/handle.h>
#include <headrace/request.h>

namespace headrace::python {

namespace nb = nanobind;

enum class WriteMode : uint8_t { update, create, truncate, replace };

FileMode parse_file_mode(const std::string& word);
WriteMode parse_write_mode(const std::string& word);
CopyMode parse_copy(const std::string& word);
CacheMode parse_cache(const std::string& word);
EngineKind parse_engine(const std::string& word);
WhenFull parse_when_full(const std::string& word);
Ladder parse_ladder(const char* name, const std::string& word);
PageKind parse_pages(const std::string& word);
// None: `otherwise`.
Durability parse_durability(const std::optional<std::string>& word, Durability otherwise);
// kPriorityMin..kPriorityMax.
int check_priority(int64_t priority);
// 0..2^63-1, from anything with __index__. Raises TypeError, or ValueError by `name`.
uint64_t whole_number(const char* name, nb::handle number);

}  // namespace headrace::python
