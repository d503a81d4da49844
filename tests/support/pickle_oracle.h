// SPDX-License-Identifier: Apache-2.0
// What must be true of every Pickle, found by replaying its steps as a consumer does; and what it holds, as text.
// Shared by the unit tests of the reader and the writer and by the reader's fuzz target.
// Pure; any thread; owns nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <headrace/pickle.h>

namespace headrace::test {

class PickleOracle {
 public:
  PickleOracle(const Pickle& pickle, std::span<const std::byte> input) : pickle_(pickle), input_(input) {}

  // The first rule that is broken.
  std::optional<std::string> fault() {
    for (const PickleStep& step : pickle_.steps()) {
      if (step.kind == PickleStepKind::create)
        replay_create(step);
      else
        replay_change(step);
    }
    expect(created_ == pickle_.node_count(), "all nodes are created by steps");
    expect(pickle_.root() < created_, "the root is a node");
    check_end();
    check_globals();
    check_graph();
    return fault_;
  }

 private:
  void expect(bool holds, std::string_view rule) {
    if (!holds && !fault_.has_value()) fault_ = fmt::format("broken: {}", rule);
  }

  void replay_create(const PickleStep& step) {
    expect(step.first == created_ && step.count > 0, "nodes are created in order");
    expect(pickle_.operands(step).empty(), "create has no operands");
    for (PickleNode node = step.first; node < step.first + step.count && !fault_.has_value(); ++node) {
      for (const PickleNode item : pickle_.tuple_items(node))
        expect(item < node, "items of a tuple come first");
      if (const auto call = pickle_.call(node)) {
        expect(call->callee < node && call->arguments < node, "a call comes after its operands");
        expect(pickle_.kind(call->arguments) == PickleKind::tuple, "arguments are a tuple");
      }
      if (const auto storage = pickle_.storage(node)) {
        expect(storage->persistent_id < node && storage->type < node, "a storage comes after its id");
        expect(pickle_.global(storage->type).has_value(), "a storage's type is a global");
        expect(storage->numel <= INT64_MAX, "a storage's elements are a number");
        inside(storage->key);
        inside(storage->location);
      }
      if (const auto text = pickle_.text(node)) inside(*text);
      const std::span<const std::byte> bytes = pickle_.bytes(node);
      inside({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      if (const auto global = pickle_.global(node))
        expect(*global < pickle_.globals().size(), "a global is in the list");
      const bool one_of_a_kind = pickle_.integer(node).has_value() + pickle_.real(node).has_value() +
                                     pickle_.boolean(node).has_value() + pickle_.text(node).has_value() +
                                     pickle_.call(node).has_value() + pickle_.storage(node).has_value() <=
                                 1;
      expect(one_of_a_kind, "a node has one kind");
      expect(static_cast<uint32_t>(pickle_.kind(node)) <= static_cast<uint32_t>(PickleKind::instance), "a known kind");
      ++created_;
    }
  }

  void replay_change(const PickleStep& step) {
    const std::span<const PickleNode> operands = pickle_.operands(step);
    expect(step.first < created_, "what is changed exists");
    expect(!operands.empty() && operands.size() == step.count, "a change has operands");
    for (const PickleNode operand : operands)
      expect(operand < created_, "operands exist");
    if (step.kind == PickleStepKind::set_items) expect(operands.size() % 2 == 0, "keys have values");
    if (step.kind == PickleStepKind::build) expect(operands.size() == 1, "there is one state");
    changes_ += operands.size();
    ++change_steps_;
  }

  // Reads the bytes, so that AddressSanitizer sees them.
  void inside(std::string_view text) {
    if (text.empty()) return;
    const char* begin = reinterpret_cast<const char*>(input_.data());
    expect(text.data() >= begin && text.data() + text.size() <= begin + input_.size(), "views lie in the input");
  }

  void check_end() {
    const uint64_t consumed = pickle_.consumed_bytes();
    expect(consumed >= 2 && consumed <= input_.size(), "what was consumed was there");
    if (consumed == 0 || consumed > input_.size()) return;
    expect(input_[consumed - 1] == std::byte{'.'}, "the last byte is STOP");
    expect(pickle_.node_count() < consumed && changes_ < consumed && pickle_.steps().size() < consumed,
           "one byte makes at most one node, operand or step");
  }

  void check_globals() {
    std::vector<std::string_view> names;
    for (const PickleGlobal& global : pickle_.globals()) {
      names.push_back(global.qualified_name);
      expect(fmt::format("{}.{}", global.module(), global.name()) == global.qualified_name, "a name has two parts");
    }
    std::ranges::sort(names);
    expect(std::ranges::adjacent_find(names) == names.end(), "globals are distinct");
  }

  // Every change is found again from the node that was changed, and once only.
  void check_graph() {
    uint64_t found = 0;
    uint64_t steps = 0;
    for (PickleNode node = 0; node < pickle_.node_count() && !fault_.has_value(); ++node)
      found += pickle_.appended(node).size() + 2 * pickle_.entries(node).size() + pickle_.states(node).size();
    for (size_t i = 0; i < pickle_.steps().size() && !fault_.has_value(); ++i) {
      const PickleStep& step = pickle_.steps()[i];
      steps += step.kind != PickleStepKind::create ? 1 : 0;
      if (step.next == kPickleNoStep) continue;
      expect(step.next > i && step.next < pickle_.steps().size(), "chains go forward");
      expect(pickle_.steps()[step.next].first == step.first, "a chain has one target");
    }
    expect(found == changes_, "the graph has all changes");
    expect(steps == change_steps_, "steps are counted");
  }

  const Pickle& pickle_;
  std::span<const std::byte> input_;
  uint32_t created_ = 0;
  uint64_t changes_ = 0;
  uint64_t change_steps_ = 0;
  std::optional<std::string> fault_;
};

// In Python's manner: "{'a': [1, None]}". A call is followed by what was done to its result, as in
// "collections.OrderedDict(){'a': 1}|{'b': 2}|" with the state between bars. Cut at a depth of 32.
inline std::string pickle_text(const Pickle& pickle, PickleNode node, uint32_t depth = 0) {
  if (depth > 32) return "...";
  const auto inner = [&](PickleNode item) { return pickle_text(pickle, item, depth + 1); };
  const auto list = [&](std::span<const PickleNode> items) {
    std::string text;
    for (const PickleNode item : items)
      text += (text.empty() ? "" : ", ") + inner(item);
    return text;
  };
  std::string changes;
  for (const PickleEntry& entry : pickle.entries(node))
    changes += fmt::format("{}{}: {}", changes.empty() ? "" : ", ", inner(entry.key), inner(entry.value));
  switch (pickle.kind(node)) {
    case PickleKind::none: return "None";
    case PickleKind::boolean: return *pickle.boolean(node) ? "True" : "False";
    case PickleKind::integer: return fmt::format("{}", *pickle.integer(node));
    case PickleKind::real: return fmt::format("{}", *pickle.real(node));
    case PickleKind::text: return fmt::format("'{}'", *pickle.text(node));
    case PickleKind::big_integer:
    case PickleKind::bytes: {
      std::string text = pickle.kind(node) == PickleKind::bytes ? "b" : "big";
      for (const std::byte byte : pickle.bytes(node))
        text += fmt::format(":{:02x}", static_cast<uint32_t>(byte));
      return text;
    }
    case PickleKind::tuple:
      return fmt::format("({}{})", list(pickle.tuple_items(node)), pickle.tuple_items(node).size() == 1 ? "," : "");
    case PickleKind::list: return fmt::format("[{}]", list(pickle.appended(node)));
    case PickleKind::dict: return fmt::format("{{{}}}", changes);
    case PickleKind::set: return "set()";
    case PickleKind::global: return pickle.globals()[*pickle.global(node)].qualified_name;
    case PickleKind::storage: return fmt::format("storage{}", inner(pickle.storage(node)->persistent_id));
    case PickleKind::call:
    case PickleKind::instance: break;
  }
  const PickleCall call = *pickle.call(node);
  std::string text =
      fmt::format("{}{}({})", inner(call.callee), pickle.kind(node) == PickleKind::instance ? ".new" : "",
                  list(pickle.tuple_items(call.arguments)));
  if (!pickle.appended(node).empty()) text += fmt::format("[{}]", list(pickle.appended(node)));
  if (!changes.empty()) text += fmt::format("{{{}}}", changes);
  for (const PickleNode state : pickle.states(node))
    text += fmt::format("|{}|", inner(state));
  return text;
}

// A parsed pickle with the bytes that it looks at.
struct ParsedPickle {
  explicit ParsedPickle(std::string_view input, const PickleOptions& options = {})
      : bytes(input), result(parse_pickle(std::as_bytes(std::span(bytes)), options)) {}
  ParsedPickle(const ParsedPickle&) = delete;
  ParsedPickle& operator=(const ParsedPickle&) = delete;

  // The contents, or the error with its offset.
  std::string text() const {
    if (!result.has_value()) return fmt::format("{} at {}", result.error().detail, result.error().offset_bytes);
    if (const auto fault = PickleOracle(*result, std::as_bytes(std::span(bytes))).fault()) return *fault;
    return pickle_text(*result, result->root());
  }

  std::string bytes;
  Result<Pickle> result;
};

inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  return bytes;
}

}  // namespace headrace::test
