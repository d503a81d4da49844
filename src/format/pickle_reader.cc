// SPDX-License-Identifier: Apache-2.0
// The loop of the reader, its errors, and the opcodes of plain values and containers.
// Any thread.
// See the header for what is owned.
#include "format/pickle_reader.h"

#include <bit>
#include <utility>

#include <fmt/format.h>

#include "format/pickle_globals.h"
#include "format/pickle_words.h"
#include "format/utf8.h"

namespace headrace {

using format::kind_name;
using format::kNoNode;
using format::Opcode;
using format::told;

namespace {

// Offsets and indices have 32 bits; there is at most one node, step or operand for each byte.
constexpr size_t kPickleBytesMax = UINT32_MAX;

}  // namespace

PickleReader::PickleReader(std::span<const std::byte> input, const PickleOptions& options)
    : input_(input.first(std::min(input.size(), kPickleBytesMax))),
      input_was_cut_(input.size() > kPickleBytesMax),
      collect_(options.unknown_globals == UnknownGlobals::collect),
      later_(options.protocols == PickleProtocols::later) {
  out_.input_ = input_;
  out_.base_offset_bytes_ = options.base_offset_bytes;
}

Result<Pickle> PickleReader::run() {
  bool going_on = true;
  while (going_on) {
    opcode_offset_ = position_;
    opcode_ = 0;
    if (position_ == input_.size()) {
      truncated("the pickle ends without STOP");
      break;
    }
    opcode_ = static_cast<uint8_t>(input_[position_++]);
    going_on = execute(static_cast<Opcode>(opcode_));
  }
  if (error_.has_value()) return std::unexpected(std::move(*error_));
  return std::move(out_);
}

// False at STOP, too.
bool PickleReader::execute(Opcode opcode) {
  switch (opcode) {
    case Opcode::proto: return proto();
    case Opcode::stop: return stop();
    case Opcode::mark: return mark();
    case Opcode::none: return push_single(none_, PickleKind::none, 0);
    case Opcode::newtrue: return push_single(true_, PickleKind::boolean, 1);
    case Opcode::newfalse: return push_single(false_, PickleKind::boolean, 0);
    case Opcode::empty_tuple: return push_single(empty_tuple_, PickleKind::tuple, 0);
    case Opcode::binint1: return binint(1);
    case Opcode::binint2: return binint(2);
    case Opcode::binint: return binint(4);
    case Opcode::long1: return long1();
    case Opcode::binfloat: return binfloat();
    case Opcode::binunicode: return binunicode(4);
    case Opcode::short_binstring: return short_binstring();
    case Opcode::empty_list: return push(PickleKind::list, 0);
    case Opcode::empty_dict: return push(PickleKind::dict, 0);
    case Opcode::empty_set: return push(PickleKind::set, 0);
    case Opcode::tuple: return tuple_from_mark();
    case Opcode::tuple1: return tuple_of(1);
    case Opcode::tuple2: return tuple_of(2);
    case Opcode::tuple3: return tuple_of(3);
    case Opcode::append: return append_one();
    case Opcode::appends: return append_many();
    case Opcode::setitem: return set_one();
    case Opcode::setitems: return set_many();
    case Opcode::binput: return put(1);
    case Opcode::long_binput: return put(4);
    case Opcode::binget: return get(1);
    case Opcode::long_binget: return get(4);
    case Opcode::global: return global();
    case Opcode::binpersid: return binpersid();
    case Opcode::reduce: return reduce();
    case Opcode::newobj: return newobj();
    case Opcode::build: return build();
    case Opcode::short_binunicode: return later_ ? binunicode(1) : unsupported();
    case Opcode::stack_global: return later_ ? stack_global() : unsupported();
    case Opcode::memoize: return later_ ? memoize() : unsupported();
    case Opcode::frame: return later_ ? frame() : unsupported();
  }
  return unsupported();
}

bool PickleReader::fail(std::string_view rule) {
  error_.emplace();
  error_->code = ErrorCode::corrupt;
  error_->operation = "read pickle";
  error_->offset_bytes = out_.base_offset_bytes_ + opcode_offset_;
  error_->detail = opcode_ == 0 ? std::string(rule) : fmt::format("{}: {}", format::opcode_facts(opcode_).name, rule);
  return false;
}

bool PickleReader::truncated(std::string_view what) {
  if (input_was_cut_) return fail("pickles of 4 GiB and more are not read");
  return fail(fmt::format("{}; the file is incomplete or damaged", what));
}

bool PickleReader::short_of_bytes(size_t count) {
  return truncated(fmt::format("{} bytes follow where {} are needed", input_.size() - position_, count));
}

bool PickleReader::short_of_items(size_t count) {
  return fail(
      fmt::format("needs {} on the stack{}, which has {}", count, marks_.empty() ? "" : " above the mark", depth()));
}

bool PickleReader::unsupported() {
  const format::OpcodeFacts facts = format::opcode_facts(opcode_);
  opcode_ = 0;
  if (facts.name == "?") return fail(fmt::format("byte 0x{:02x} is no opcode", facts.code));
  (void)fail(fmt::format("opcode {} (0x{:02x}, protocol {}) is not read: {}", facts.name, facts.code, facts.protocol,
                         later_
                             ? "only those are that Python writes for plain objects"
                             : "torch's weights_only accepts protocol 2 only, as torch.save writes it by default, and "
                               "of that not every opcode"));
  if (later_) error_->code = ErrorCode::unavailable;
  return false;
}

std::string PickleReader::name_of(const Node& node) const {
  if (node.kind == PickleKind::global) return told(out_.globals_[node.value].qualified_name);
  if (!is_made(node)) return std::string(kind_name(node.kind));
  return fmt::format("what {} gave", name_of_callee(node));
}

std::string PickleReader::name_of_callee(const Node& made) const {
  const Node& callee = node(static_cast<PickleNode>(made.value));
  return callee.kind == PickleKind::global ? told(out_.globals_[callee.value].qualified_name) : "a call";
}

// torch only warns of other protocols; their own opcodes are refused one by one.
bool PickleReader::proto() {
  if (!need(1)) return false;
  out_.protocol_ = static_cast<uint8_t>(take_number(1));
  return true;
}

// As in torch, what else is on the stack does not matter.
bool PickleReader::stop() {
  if (!need_items(1)) return false;
  out_.root_ = pop();
  out_.consumed_bytes_ = static_cast<uint32_t>(position_);
  return false;
}

bool PickleReader::binint(size_t bytes) {
  if (!need(bytes)) return false;
  const uint32_t value = take_number(bytes);
  const int64_t number = bytes == 4 ? std::bit_cast<int32_t>(value) : int64_t{value};
  return push(PickleKind::integer, std::bit_cast<uint64_t>(number));
}

bool PickleReader::long1() {
  if (!need(1)) return false;
  const uint32_t length = take_number(1);
  if (!need(length)) return false;
  const auto begin = static_cast<uint32_t>(position_);
  const std::span<const std::byte> bytes = take(length);
  const bool negative = length != 0 && (bytes.back() & std::byte{0x80}) != std::byte{0};
  const std::byte filler = negative ? std::byte{0xff} : std::byte{0};
  uint64_t value = negative ? UINT64_MAX : 0;
  for (uint32_t i = 0; i < length; ++i) {
    if (i < sizeof(value)) {
      value = (value & ~(uint64_t{0xff} << (8 * i))) | uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    } else if (bytes[i] != filler) {
      return push(PickleKind::big_integer, pickle_halves(begin, length));
    }
  }
  // All further bytes repeat the sign; the number is small if it has that sign in 64 bits, too.
  if ((value >> 63 != 0) != negative) return push(PickleKind::big_integer, pickle_halves(begin, length));
  return push(PickleKind::integer, value);
}

bool PickleReader::binfloat() {
  if (!need(8)) return false;
  uint64_t value = 0;
  for (const std::byte byte : take(8))
    value = value << 8 | static_cast<uint8_t>(byte);
  return push(PickleKind::real, value);
}

// Frames only help readers of streams: their lengths need not be looked at.
bool PickleReader::frame() {
  if (!need(8)) return false;
  take(8);
  return true;
}

bool PickleReader::memoize() {
  if (!need_items(1)) return false;
  memo_.put(memoized_++, stack_.back());
  return true;
}

bool PickleReader::binunicode(size_t length_bytes) {
  if (!need(length_bytes)) return false;
  const uint32_t length = take_number(length_bytes);
  if (!need(length)) return false;
  const auto begin = static_cast<uint32_t>(position_);
  const size_t valid = format::valid_utf8_bytes(take(length), format::Surrogates::accept);
  if (valid != length) return fail(fmt::format("the text is not UTF-8 at its byte {}", valid));
  return push(PickleKind::text, pickle_halves(begin, length));
}

bool PickleReader::short_binstring() {
  if (!need(1)) return false;
  const uint32_t length = take_number(1);
  if (!need(length)) return false;
  const auto begin = static_cast<uint32_t>(position_);
  position_ += length;
  return push(PickleKind::bytes, pickle_halves(begin, length));
}

bool PickleReader::push_tuple(size_t begin) {
  const auto count = static_cast<uint32_t>(stack_.size() - begin);
  if (count == 0) return push_single(empty_tuple_, PickleKind::tuple, 0);
  const uint32_t operands = take_operands(begin);
  return push(PickleKind::tuple, pickle_halves(operands, count));
}

bool PickleReader::tuple_from_mark() {
  size_t begin = 0;
  return pop_mark(begin) && push_tuple(begin);
}

bool PickleReader::tuple_of(size_t count) { return need_items(count) && push_tuple(stack_.size() - count); }

// `begin`: the first item on the stack; the target lies below it.
bool PickleReader::append_from(size_t begin) {
  const Node& target = node(stack_[begin - 1]);
  if (target.kind != PickleKind::list && !is_opaque(target))
    return fail(fmt::format("only a list can be appended to, not {}", name_of(target)));
  if (begin != stack_.size()) add_step(PickleStepKind::append, begin);
  return true;
}

bool PickleReader::append_one() { return need_items(2) && append_from(stack_.size() - 1); }

bool PickleReader::append_many() {
  size_t begin = 0;
  if (!pop_mark(begin)) return false;
  return begin > floor_ ? append_from(begin) : fail("there is nothing below the mark to append to");
}

bool PickleReader::set_from(size_t begin) {
  const Node& target = node(stack_[begin - 1]);
  const bool dict = target.kind == PickleKind::dict || (is_made(target) && format::gives_dict(target.role));
  if (!dict && !is_opaque(target))
    return fail(fmt::format("only dict, OrderedDict and Counter have items to set, not {}", name_of(target)));
  const size_t count = stack_.size() - begin;
  if (count % 2 != 0) return fail(fmt::format("keys and values come in pairs, but there are {} items", count));
  for (size_t i = begin; i < stack_.size(); i += 2) {
    const PickleKind key = node(stack_[i]).kind;
    if (key == PickleKind::list || key == PickleKind::dict || key == PickleKind::set)
      return fail(fmt::format("{} cannot be a key", kind_name(key)));
    if (!may_be_key(stack_[i])) return false;
  }
  if (count != 0) add_step(PickleStepKind::set_items, begin);
  return true;
}

bool PickleReader::set_one() { return need_items(3) && set_from(stack_.size() - 2); }

bool PickleReader::set_many() {
  size_t begin = 0;
  if (!pop_mark(begin)) return false;
  return begin > floor_ ? set_from(begin) : fail("there is no dict below the mark");
}

bool PickleReader::put(size_t bytes) {
  if (!need(bytes) || !need_items(1)) return false;
  memo_.put(take_number(bytes), stack_.back());
  return true;
}

bool PickleReader::get(size_t bytes) {
  if (!need(bytes)) return false;
  const uint32_t index = take_number(bytes);
  const PickleNode node = memo_.get(index);
  if (node == kNoNode) return fail(fmt::format("nothing was put into the memo at {}", index));
  return push_node(node);
}

Result<Pickle> parse_pickle(std::span<const std::byte> input, const PickleOptions& options) {
  return PickleReader(input, options).run();
}

}  // namespace headrace
