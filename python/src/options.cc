// SPDX-License-Identifier: Apache-2.0
// See options.h.
// Needs the GIL.
// Owns nothing.
#include "options.h"

#include <array>
#include <string_view>
#include <utility>

#include "errors.h"

namespace headrace::python {

namespace {

template <class T, size_t N>
T choose(const char* name, const std::string& word, const std::array<std::pair<std::string_view, T>, N>& words) {
  std::string known;
  for (const auto& [text, value] : words) {
    if (word == text) return value;
    known += (known.empty() ? "'" : ", '") + std::string(text) + "'";
  }
  refuse(PyExc_ValueError, "%s is '%s'; allowed: %s", name, word.c_str(), known.c_str());
}

template <class T, size_t N>
using Words = std::array<std::pair<std::string_view, T>, N>;

}  // namespace

FileMode parse_file_mode(const std::string& word) {
  return choose("mode", word,
                Words<FileMode, 4>{{{"read", FileMode::read},
                                    {"update", FileMode::update},
                                    {"create", FileMode::create},
                                    {"truncate", FileMode::truncate}}});
}

WriteMode parse_write_mode(const std::string& word) {
  return choose("mode", word,
                Words<WriteMode, 4>{{{"update", WriteMode::update},
                                     {"create", WriteMode::create},
                                     {"truncate", WriteMode::truncate},
                                     {"replace", WriteMode::replace}}});
}

CopyMode parse_copy(const std::string& word) {
  return choose(
      "copy", word,
      Words<CopyMode, 3>{{{"auto", CopyMode::automatic}, {"always", CopyMode::always}, {"never", CopyMode::never}}});
}

CacheMode parse_cache(const std::string& word) {
  return choose(
      "cache", word,
      Words<CacheMode, 3>{{{"auto", CacheMode::automatic}, {"use", CacheMode::use}, {"bypass", CacheMode::bypass}}});
}

EngineKind parse_engine(const std::string& word) {
  const auto kind = engine_from_name(word);
  if (!kind) {
    refuse(PyExc_ValueError, "engine is '%s'; allowed: 'auto', 'uring', 'aio', 'posix', 'null'", word.c_str());
  }
  return *kind;
}

WhenFull parse_when_full(const std::string& word) {
  return choose("when_full", word, Words<WhenFull, 2>{{{"wait", WhenFull::wait}, {"raise", WhenFull::fail}}});
}

Ladder parse_ladder(const char* name, const std::string& word) {
  return choose(
      name, word,
      Words<Ladder, 3>{{{"auto", Ladder::automatic}, {"never", Ladder::never}, {"required", Ladder::required}}});
}

PageKind parse_pages(const std::string& word) {
  return choose(
      "pages", word,
      Words<PageKind, 3>{
          {{"transparent", PageKind::transparent}, {"reserved", PageKind::reserved}, {"small", PageKind::small}}});
}

Durability parse_durability(const std::optional<std::string>& word, Durability otherwise) {
  if (!word) return otherwise;
  return choose("durability", *word, Words<Durability, 2>{{{"none", Durability::none}, {"data", Durability::data}}});
}

int check_priority(int64_t priority) {
  if (priority < kPriorityMin || priority > kPriorityMax) {
    refuse(PyExc_ValueError, "priority is %lld; allowed: %d to %d", static_cast<long long>(priority), kPriorityMin,
           kPriorityMax);
  }
  return static_cast<int>(priority);
}

uint64_t whole_number(const char* name, nb::handle number) {
  const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || value < 0) {
    refuse(PyExc_ValueError, "%s is %R; allowed: 0 to 2**63 - 1", name, number.ptr());
  }
  return static_cast<uint64_t>(value);
}

}  // namespace headrace::python
