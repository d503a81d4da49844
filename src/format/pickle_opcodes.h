// SPDX-License-Identifier: Apache-2.0
// The opcodes of pickle, for the reader, the writer and their messages. Source: the documentation of Python's pickletools.
// Any thread: constants and pure functions.
// Owns nothing; names live for ever.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace headrace::format {

// Those that are read; all but EMPTY_SET are of protocol 2 or lower.
enum class Opcode : uint8_t {
  mark = '(',
  stop = '.',
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  none = 'N',
  binpersid = 'Q',
  reduce = 'R',
  short_binstring = 'U',
  binunicode = 'X',
  append = 'a',
  build = 'b',
  global = 'c',
  empty_dict = '}',
  appends = 'e',
  binget = 'h',
  long_binget = 'j',
  empty_list = ']',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  empty_tuple = ')',
  setitems = 'u',
  binfloat = 'G',
  proto = 0x80,
  newobj = 0x81,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  long1 = 0x8a,
  empty_set = 0x8f,
  // Only with PickleProtocols::later.
  short_binunicode = 0x8c,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
};

struct OpcodeFacts {
  uint8_t code = 0;
  uint8_t protocol = 0;  // the first that has it
  std::string_view name = "?";
};

// Every opcode of protocols 0 to 5, by code.
inline constexpr auto kOpcodes = std::to_array<OpcodeFacts>({
    {'(', 0, "MARK"},          {')', 1, "EMPTY_TUPLE"},
    {'.', 0, "STOP"},          {'0', 0, "POP"},
    {'1', 1, "POP_MARK"},      {'2', 0, "DUP"},
    {'B', 3, "BINBYTES"},      {'C', 3, "SHORT_BINBYTES"},
    {'F', 0, "FLOAT"},         {'G', 1, "BINFLOAT"},
    {'I', 0, "INT"},           {'J', 1, "BININT"},
    {'K', 1, "BININT1"},       {'L', 0, "LONG"},
    {'M', 1, "BININT2"},       {'N', 0, "NONE"},
    {'P', 0, "PERSID"},        {'Q', 1, "BINPERSID"},
    {'R', 0, "REDUCE"},        {'S', 0, "STRING"},
    {'T', 1, "BINSTRING"},     {'U', 1, "SHORT_BINSTRING"},
    {'V', 0, "UNICODE"},       {'X', 1, "BINUNICODE"},
    {']', 1, "EMPTY_LIST"},    {'a', 0, "APPEND"},
    {'b', 0, "BUILD"},         {'c', 0, "GLOBAL"},
    {'d', 0, "DICT"},          {'e', 1, "APPENDS"},
    {'g', 0, "GET"},           {'h', 1, "BINGET"},
    {'i', 0, "INST"},          {'j', 1, "LONG_BINGET"},
    {'l', 0, "LIST"},          {'o', 1, "OBJ"},
    {'p', 0, "PUT"},           {'q', 1, "BINPUT"},
    {'r', 1, "LONG_BINPUT"},   {'s', 0, "SETITEM"},
    {'t', 0, "TUPLE"},         {'u', 1, "SETITEMS"},
    {'}', 1, "EMPTY_DICT"},    {0x80, 2, "PROTO"},
    {0x81, 2, "NEWOBJ"},       {0x82, 2, "EXT1"},
    {0x83, 2, "EXT2"},         {0x84, 2, "EXT4"},
    {0x85, 2, "TUPLE1"},       {0x86, 2, "TUPLE2"},
    {0x87, 2, "TUPLE3"},       {0x88, 2, "NEWTRUE"},
    {0x89, 2, "NEWFALSE"},     {0x8a, 2, "LONG1"},
    {0x8b, 2, "LONG4"},        {0x8c, 4, "SHORT_BINUNICODE"},
    {0x8d, 4, "BINUNICODE8"},  {0x8e, 4, "BINBYTES8"},
    {0x8f, 4, "EMPTY_SET"},    {0x90, 4, "ADDITEMS"},
    {0x91, 4, "FROZENSET"},    {0x92, 4, "NEWOBJ_EX"},
    {0x93, 4, "STACK_GLOBAL"}, {0x94, 4, "MEMOIZE"},
    {0x95, 4, "FRAME"},        {0x96, 5, "BYTEARRAY8"},
    {0x97, 5, "NEXT_BUFFER"},  {0x98, 5, "READONLY_BUFFER"},
});
static_assert(std::ranges::is_sorted(kOpcodes, {}, &OpcodeFacts::code));

// The name is "?" for a byte that is no opcode.
constexpr OpcodeFacts opcode_facts(uint8_t code) noexcept {
  const auto* found = std::ranges::lower_bound(kOpcodes, code, {}, &OpcodeFacts::code);
  if (found == kOpcodes.end() || found->code != code) return {.code = code};
  return *found;
}

}  // namespace headrace::format
