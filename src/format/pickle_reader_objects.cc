// SPDX-License-Identifier: Apache-2.0
// The opcodes that name globals, call them, and give state to what they made: where a pickle could do harm.
// Any thread.
// See the header for what is owned.
#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "format/pickle_globals.h"
#include "format/pickle_reader.h"
#include "format/pickle_words.h"
#include "format/utf8.h"

namespace headrace {

using format::told;

namespace {

// Each costs a string and two entries of tables. The pickles of a whole model hub have a few hundred together.
constexpr size_t kGlobalsMax = 65'536;
// Python hashes a tuple by its items, theirs included, again each time and by recursion: a few bytes that name one tuple
// twice in the next, and so on, take for ever, and a million one within the other end the process.
constexpr uint32_t kKeyItemsMax = 4096;
constexpr uint32_t kKeyDepthMax = 100;
// What names, and calls from their arguments, copy in all: for pickles that name one long list or text again and again.
constexpr uint64_t kCopiedFree = uint64_t{1} << 20;
constexpr uint64_t kCopiedPerByte = 16;

std::string_view as_characters(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool PickleReader::take_line(std::string_view& line) {
  const std::string_view rest = as_characters(input_.subspan(position_));
  const size_t length = rest.find('\n');
  if (length == std::string_view::npos) return truncated("a name without its end of line");
  line = rest.substr(0, length);
  position_ += length + 1;
  if (format::valid_utf8_bytes(std::as_bytes(std::span(line)), format::Surrogates::refuse) != length)
    return fail("the name is not UTF-8");
  return true;
}

bool PickleReader::global() {
  format::GlobalName written;
  return take_line(written.module) && take_line(written.name) && global_of(written);
}

// Module and name are texts on the stack.
bool PickleReader::stack_global() {
  if (!need_items(2)) return false;
  const PickleNode name = pop();
  const PickleNode module = pop();
  if (node(module).kind != PickleKind::text || node(name).kind != PickleKind::text)
    return fail("needs two texts on the stack");
  const auto text_of = [&](PickleNode text) {
    const uint64_t halves = node(text).value;
    return as_characters(input_.subspan(static_cast<uint32_t>(halves), halves >> 32));
  };
  return global_of({.module = text_of(module), .name = text_of(name)});
}

bool PickleReader::global_of(const format::GlobalName& written) {
  const format::GlobalName meant = format::python3_name(written);
  // STACK_GLOBAL takes texts that stand once in the input and may be named by a few bytes each time.
  if (!may_be_copied(meant.module.size() + meant.name.size())) return false;
  scratch_.assign(meant.module);
  scratch_ += '.';
  scratch_ += meant.name;
  const auto found = global_indices_.find(scratch_);
  if (found != global_indices_.end()) return push(PickleKind::global, found->second, out_.globals_[found->second].role);
  const PickleRole role = format::global_role(meant.module, scratch_);
  if (!collect_ && role == PickleRole::never)
    return fail(fmt::format("{} is in a module that is never admitted", told(scratch_)));
  if (!collect_ && role == PickleRole::unknown)
    return fail(fmt::format("{} is not among the names that torch's weights_only admits", told(scratch_)));
  if (out_.globals_.size() == kGlobalsMax) return fail(fmt::format("more than {} different names", kGlobalsMax));
  const auto index = static_cast<uint32_t>(out_.globals_.size());
  out_.globals_.push_back({.qualified_name = scratch_,
                           .module_bytes = static_cast<uint32_t>(meant.module.size()),
                           .role = role,
                           .offset_bytes = out_.base_offset_bytes_ + opcode_offset_});
  global_indices_.emplace(scratch_, index);
  return push(PickleKind::global, index, role);
}

bool PickleReader::is_string(PickleNode index) const {
  return node(index).kind == PickleKind::text || node(index).kind == PickleKind::bytes;
}

bool PickleReader::binpersid() {
  if (!need_items(1)) return false;
  const PickleNode id = stack_.back();
  if (node(id).kind != PickleKind::tuple)
    return fail(fmt::format("the persistent id is {} rather than a tuple", name_of(node(id))));
  const std::span<const PickleNode> items = out_.tuple_items(id);
  // ("module", class, file, source): how a legacy file names a class of modules. It is no more than that class.
  if (collect_ && items.size() == 4 && is_string(items[0]) && out_.characters(items[0]) == "module" &&
      node(items[1]).kind == PickleKind::global) {
    stack_.back() = items[1];
    return true;
  }
  if (items.empty() || !is_string(items[0]) || out_.characters(items[0]) != "storage")
    return fail("the persistent id does not begin with \"storage\"");
  if (items.size() != 5 && items.size() != 6)
    return fail(fmt::format("the persistent id of a storage has 5 or 6 items, not {}", items.size()));
  const Node& type = node(items[1]);
  const bool has_type = type.role == PickleRole::storage_class || type.role == PickleRole::untyped_storage;
  if (type.kind != PickleKind::global || (!has_type && !is_opaque(type)))
    return fail(fmt::format("{} is no class of storages", name_of(type)));
  if (!is_string(items[2]) || !is_string(items[3])) return fail("the storage's key and location have to be text");
  const Node& numel = node(items[4]);
  if (numel.kind != PickleKind::integer || std::bit_cast<int64_t>(numel.value) < 0)
    return fail("the storage's number of elements has to be an int of 0 or more");
  if (items.size() == 6 && node(items[5]).kind != PickleKind::none && node(items[5]).kind != PickleKind::tuple)
    return fail("the storage's view has to be None or a tuple");
  stack_.pop_back();
  return push(PickleKind::storage, id);
}

bool PickleReader::may_be_key(PickleNode key) {
  if (node(key).kind != PickleKind::tuple) return true;
  struct Place {
    std::span<const PickleNode> items;
    size_t next = 0;
  };
  std::vector<Place> path = {{.items = out_.tuple_items(key)}};
  uint32_t seen = 0;
  while (!path.empty()) {
    Place& place = path.back();
    if (place.next == place.items.size()) {
      path.pop_back();
      continue;
    }
    const PickleNode item = place.items[place.next++];
    if (++seen > kKeyItemsMax || path.size() > kKeyDepthMax)
      return fail(fmt::format("a key is a tuple of more than {} items, or nested more than {} deep", kKeyItemsMax,
                              kKeyDepthMax));
    if (node(item).kind == PickleKind::tuple) path.push_back({.items = out_.tuple_items(item)});
  }
  return true;
}

bool PickleReader::may_be_copied(uint64_t count) {
  copied_ += count;
  if (copied_ <= kCopiedFree + kCopiedPerByte * input_.size()) return true;
  return fail("names and calls copy many times more than the pickle holds");
}

bool PickleReader::may_be_keys(std::span<const PickleNode> items) {
  return may_be_copied(items.size()) && std::ranges::all_of(items, [&](PickleNode item) { return may_be_key(item); });
}

// All items that a list or tuple has by now; none of others.
bool PickleReader::may_be_items(PickleNode container, const std::function<bool(std::span<const PickleNode>)>& check) {
  const Node& held = node(container);
  if (held.kind == PickleKind::tuple) return check(out_.tuple_items(container));
  if (held.kind != PickleKind::list && held.kind != PickleKind::dict) return true;
  for (uint32_t i = held.first_step; i != kPickleNoStep; i = out_.steps_[i].next) {
    const std::span<const PickleNode> items = out_.operands(out_.steps_[i]);
    const bool keys_known = held.kind == PickleKind::dict;  // and checked
    if (!may_be_copied(1) || !(keys_known ? may_be_copied(items.size()) : check(items))) return false;
  }
  return true;
}

// Classes of Python copy what they are given, and hash it or the first items of what it holds.
bool PickleReader::may_be_arguments(PickleRole role, std::span<const PickleNode> arguments) {
  if (role != PickleRole::plain_class && role != PickleRole::counter && role != PickleRole::ordered_dict &&
      role != PickleRole::function)
    return true;
  for (const PickleNode argument : arguments) {
    if (is_string(argument) && !may_be_copied(out_.view(node(argument)).size())) return false;
    const bool checked = may_be_items(argument, [&](std::span<const PickleNode> items) {
      if (!may_be_keys(items)) return false;
      return std::ranges::all_of(items, [&](PickleNode item) {
        return node(item).kind != PickleKind::list ||
               may_be_items(item, [&](std::span<const PickleNode> inner) { return may_be_keys(inner); });
      });
    });
    if (!checked) return false;
  }
  return true;
}

// The callee and its arguments are on the stack.
bool PickleReader::call(PickleKind kind) {
  const PickleNode arguments = stack_.back();
  const PickleNode callee = stack_[stack_.size() - 2];
  if (node(arguments).kind != PickleKind::tuple)
    return fail(fmt::format("the arguments are {} rather than a tuple", name_of(node(arguments))));
  const PickleRole role = node(callee).role;
  if (!may_be_arguments(role, out_.tuple_items(arguments))) return false;
  stack_.resize(stack_.size() - 2);
  return push(kind, pickle_halves(callee, arguments), role);
}

bool PickleReader::reduce() {
  if (!need_items(2)) return false;
  const Node& callee = node(stack_[stack_.size() - 2]);
  if (is_opaque(callee)) return call(PickleKind::call);
  if (callee.kind != PickleKind::global) return fail(fmt::format("{} cannot be called", name_of(callee)));
  if (!format::can_be_called(callee.role)) return fail(fmt::format("{} is no function or class", name_of(callee)));
  // bytearray(n) is n zeros: a few bytes would take any amount of memory.
  const std::span<const PickleNode> arguments = out_.tuple_items(stack_.back());
  if (!arguments.empty() && out_.globals_[callee.value].qualified_name == "builtins.bytearray" &&
      (node(arguments[0]).kind == PickleKind::integer || format::gives_tensor(node(arguments[0]).role)))
    return fail(fmt::format("a bytearray is made of text, not of {}", name_of(node(arguments[0]))));
  return call(PickleKind::call);
}

bool PickleReader::newobj() {
  if (!need_items(2)) return false;
  const Node& callee = node(stack_[stack_.size() - 2]);
  if (is_opaque(callee)) return call(PickleKind::instance);
  if (callee.kind != PickleKind::global || !format::is_class(callee.role))
    return fail(fmt::format("{} is no class that may be instantiated", name_of(callee)));
  return call(PickleKind::instance);
}

bool PickleReader::build() {
  if (!need_items(2)) return false;
  const Node& target = node(stack_[stack_.size() - 2]);
  const Node& state = node(stack_.back());
  if (!is_opaque(target)) {
    if (!is_made(target) || !(format::gives_tensor(target.role) || format::gives_dict(target.role)))
      return fail(
          fmt::format("only tensors, parameters, OrderedDict and Counter have a state, not {}", name_of(target)));
    const bool dict = state.kind == PickleKind::dict || (is_made(state) && format::gives_dict(state.role));
    if (format::gives_dict(target.role) && !dict && !is_opaque(state))
      return fail(fmt::format("the state of {} is {} rather than a dict", name_of_callee(target), name_of(state)));
    if (format::gives_dict(target.role) && !may_be_items(stack_.back(), [](auto) { return true; })) return false;
  }
  add_step(PickleStepKind::build, stack_.size() - 1);
  return true;
}

}  // namespace headrace
