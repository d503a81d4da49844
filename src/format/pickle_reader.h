// SPDX-License-Identifier: Apache-2.0
// The restricted reader of pickles: one pass, one switch, no recursion. docs/formats/pickle.md has the grammar.
// Any thread: a reader lives for one call.
// Owns the stack, the marks and the memo while it reads; the program goes to the caller.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/pickle.h>

#include "format/pickle_globals.h"
#include "format/pickle_memo.h"
#include "format/pickle_opcodes.h"

namespace headrace {

// Two halves of Pickle::Node::value.
constexpr uint64_t pickle_halves(uint32_t low, uint32_t high) noexcept { return uint64_t{high} << 32 | low; }

// Functions that return bool give false once error_ is set.
class PickleReader {
 public:
  PickleReader(std::span<const std::byte> input, const PickleOptions& options);
  Result<Pickle> run();

 private:
  using Node = Pickle::Node;

  // False at STOP, too.
  bool execute(format::Opcode opcode);

  // Errors, at the opcode being read.
  bool fail(std::string_view rule);
  bool truncated(std::string_view what);
  bool unsupported();
  bool short_of_bytes(size_t count);
  bool short_of_items(size_t count);

  // The input.
  bool need(size_t count) {
    if (input_.size() - position_ >= count) return true;
    return short_of_bytes(count);
  }

  std::span<const std::byte> take(size_t count) {
    const std::span<const std::byte> taken = input_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  // Least byte first. The caller has asked for the bytes with need().
  uint32_t take_number(size_t count) {
    uint32_t value = 0;
    for (size_t i = 0; i < count; ++i)
      value |= static_cast<uint32_t>(input_[position_ + i]) << (8 * i);
    position_ += count;
    return value;
  }

  // The stack. What lies below the last mark is out of reach.
  size_t depth() const { return stack_.size() - floor_; }

  bool need_items(size_t count) {
    if (depth() >= count) return true;
    return short_of_items(count);
  }

  PickleNode pop() {
    const PickleNode node = stack_.back();
    stack_.pop_back();
    return node;
  }

  bool push_node(PickleNode node) {
    stack_.push_back(node);
    return true;
  }

  bool mark() {
    marks_.push_back(floor_);
    floor_ = static_cast<uint32_t>(stack_.size());
    return true;
  }

  // Where the items above the mark begin; the mark is gone then, the items are not yet.
  bool pop_mark(size_t& begin) {
    if (marks_.empty()) return fail("without a MARK before it");
    begin = floor_;
    floor_ = marks_.back();
    marks_.pop_back();
    return true;
  }

  // The program.
  PickleNode create(PickleKind kind, uint64_t value, PickleRole role = PickleRole::unknown) {
    const auto node = static_cast<PickleNode>(out_.nodes_.size());
    out_.nodes_.push_back(
        {.kind = kind, .role = role, .offset = static_cast<uint32_t>(opcode_offset_), .value = value});
    if (out_.steps_.empty() || out_.steps_.back().kind != PickleStepKind::create) {
      out_.steps_.push_back(
          {.kind = PickleStepKind::create, .first = node, .count = 0, .operands_begin = 0, .next = kPickleNoStep});
    }
    ++out_.steps_.back().count;
    return node;
  }

  bool push(PickleKind kind, uint64_t value, PickleRole role = PickleRole::unknown) {
    return push_node(create(kind, value, role));
  }

  bool push_single(PickleNode& node, PickleKind kind, uint64_t value) {
    if (node == format::kNoNode) node = create(kind, value);
    return push_node(node);
  }

  // Moves the items from stack index `begin` on to the operands, and takes them off the stack.
  uint32_t take_operands(size_t begin) {
    const auto first = static_cast<uint32_t>(out_.operands_.size());
    out_.operands_.insert(out_.operands_.end(), stack_.begin() + static_cast<ptrdiff_t>(begin), stack_.end());
    stack_.resize(begin);
    return first;
  }

  // Changes what is on top of the stack below the operands.
  void add_step(PickleStepKind kind, size_t begin) {
    const auto count = static_cast<uint32_t>(stack_.size() - begin);
    const uint32_t operands = take_operands(begin);
    const auto step = static_cast<uint32_t>(out_.steps_.size());
    Node& target = out_.nodes_[stack_.back()];
    if (target.first_step == kPickleNoStep)
      target.first_step = step;
    else
      out_.steps_[target.last_step].next = step;
    target.last_step = step;
    out_.steps_.push_back(
        {.kind = kind, .first = stack_.back(), .count = count, .operands_begin = operands, .next = kPickleNoStep});
  }

  const Node& node(PickleNode index) const { return out_.nodes_[index]; }

  // Made from an unknown global: nothing is known about it, so anything may be done with it.
  bool is_opaque(const Node& node) const {
    return collect_ && node.role <= PickleRole::never &&
           (node.kind == PickleKind::global || node.kind == PickleKind::call || node.kind == PickleKind::instance);
  }

  static bool is_made(const Node& node) { return node.kind == PickleKind::call || node.kind == PickleKind::instance; }

  // For messages.
  std::string name_of(const Node& node) const;
  std::string name_of_callee(const Node& made) const;

  // Values and containers: pickle_reader.cc. As in torch, PROTO may say anything, and only what is on top at STOP counts.
  bool proto();
  bool stop();
  bool binint(size_t bytes);
  bool long1();
  bool binfloat();
  bool binunicode(size_t length_bytes);
  bool frame();
  bool memoize();
  bool short_binstring();
  bool push_tuple(size_t begin);
  bool tuple_from_mark();
  bool tuple_of(size_t count);
  bool append_from(size_t begin);
  bool append_one();
  bool append_many();
  bool set_from(size_t begin);
  bool set_one();
  bool set_many();
  bool put(size_t bytes);
  bool get(size_t bytes);

  // Globals and what is made of them: pickle_reader_objects.cc.
  bool take_line(std::string_view& line);
  bool global();
  bool stack_global();
  bool global_of(const format::GlobalName& written);
  bool is_string(PickleNode index) const;
  bool binpersid();
  bool may_be_key(PickleNode key);
  bool may_be_keys(std::span<const PickleNode> items);
  bool may_be_copied(uint64_t count);
  bool may_be_items(PickleNode container, const std::function<bool(std::span<const PickleNode>)>& check);
  bool may_be_arguments(PickleRole role, std::span<const PickleNode> arguments);
  bool call(PickleKind kind);
  bool reduce();
  bool newobj();
  bool build();

  std::span<const std::byte> input_;
  bool input_was_cut_ = false;
  bool collect_ = false;
  bool later_ = false;
  uint32_t memoized_ = 0;
  size_t position_ = 0;
  size_t opcode_offset_ = 0;
  uint8_t opcode_ = 0;  // for messages; 0: none
  std::vector<PickleNode> stack_;
  std::vector<uint32_t> marks_;  // the floors below
  uint32_t floor_ = 0;           // stack index of the first item above the last mark
  format::PickleMemo memo_;
  PickleNode none_ = format::kNoNode;
  PickleNode true_ = format::kNoNode;
  PickleNode false_ = format::kNoNode;
  PickleNode empty_tuple_ = format::kNoNode;
  std::map<std::string, uint32_t, std::less<>> global_indices_;
  std::string scratch_;
  uint64_t copied_ = 0;  // by names, and by calls from their arguments
  std::optional<Error> error_;
  Pickle out_;
};

}  // namespace headrace
