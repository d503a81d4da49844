// SPDX-License-Identifier: Apache-2.0
// What a file contains is told without trusting it.
// Any thread.
// Owns nothing.
#include "format/pickle_words.h"

#include <fmt/format.h>

namespace headrace::format {

namespace {

constexpr size_t kNameBytesToldMax = 80;

}  // namespace

std::string told(std::string_view name) {
  std::string result;
  for (const char c : name.substr(0, kNameBytesToldMax)) {
    if (c >= ' ' && c <= '~')
      result += c;
    else
      result += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  }
  if (name.size() > kNameBytesToldMax) result += "...";
  return result;
}

std::string_view kind_name(PickleKind kind) noexcept {
  switch (kind) {
    case PickleKind::none: return "None";
    case PickleKind::boolean: return "a bool";
    case PickleKind::integer:
    case PickleKind::big_integer: return "an int";
    case PickleKind::real: return "a float";
    case PickleKind::text: return "a text";
    case PickleKind::bytes: return "a byte string";
    case PickleKind::tuple: return "a tuple";
    case PickleKind::list: return "a list";
    case PickleKind::dict: return "a dict";
    case PickleKind::set: return "a set";
    case PickleKind::global: return "a global";
    case PickleKind::storage: return "a storage";
    case PickleKind::call: return "what a call gave";
    case PickleKind::instance: return "an instance";
  }
  return "?";
}

}  // namespace headrace::format
