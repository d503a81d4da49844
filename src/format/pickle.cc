// SPDX-License-Identifier: Apache-2.0
// What a Pickle tells about itself. Loops follow chains that the reader built forward, so each of them ends.
// Any thread.
// See the header for what is owned.
#include <headrace/pickle.h>

#include <bit>

#include "base/check.h"

namespace headrace {
namespace {

// Two numbers in Node::value.
uint32_t low(uint64_t value) noexcept { return static_cast<uint32_t>(value); }
uint32_t high(uint64_t value) noexcept { return static_cast<uint32_t>(value >> 32); }

}  // namespace

const Pickle::Node& Pickle::at(PickleNode node) const noexcept {
  HEADRACE_CHECK(node < nodes_.size());
  return nodes_[node];
}

std::span<const std::byte> Pickle::view(const Node& node) const noexcept {
  return input_.subspan(low(node.value), high(node.value));
}

PickleNode Pickle::root() const noexcept { return root_; }
uint32_t Pickle::node_count() const noexcept { return static_cast<uint32_t>(nodes_.size()); }
uint64_t Pickle::consumed_bytes() const noexcept { return consumed_bytes_; }
uint8_t Pickle::protocol() const noexcept { return protocol_; }
std::span<const PickleGlobal> Pickle::globals() const noexcept { return globals_; }
std::span<const PickleStep> Pickle::steps() const noexcept { return steps_; }

std::span<const PickleNode> Pickle::operands(const PickleStep& step) const noexcept {
  if (step.kind == PickleStepKind::create) return {};
  return std::span(operands_).subspan(step.operands_begin, step.count);
}

PickleKind Pickle::kind(PickleNode node) const noexcept { return at(node).kind; }
PickleRole Pickle::role(PickleNode node) const noexcept { return at(node).role; }
uint64_t Pickle::offset_bytes(PickleNode node) const noexcept { return base_offset_bytes_ + at(node).offset; }

std::optional<bool> Pickle::boolean(PickleNode node) const noexcept {
  const Node& found = at(node);
  if (found.kind != PickleKind::boolean) return std::nullopt;
  return found.value != 0;
}

std::optional<int64_t> Pickle::integer(PickleNode node) const noexcept {
  const Node& found = at(node);
  if (found.kind != PickleKind::integer) return std::nullopt;
  return std::bit_cast<int64_t>(found.value);
}

std::optional<double> Pickle::real(PickleNode node) const noexcept {
  const Node& found = at(node);
  if (found.kind != PickleKind::real) return std::nullopt;
  return std::bit_cast<double>(found.value);
}

std::string_view Pickle::characters(PickleNode node) const noexcept {
  const std::span<const std::byte> found = view(at(node));
  return {reinterpret_cast<const char*>(found.data()), found.size()};
}

std::optional<std::string_view> Pickle::text(PickleNode node) const noexcept {
  if (at(node).kind != PickleKind::text) return std::nullopt;
  return characters(node);
}

std::span<const std::byte> Pickle::bytes(PickleNode node) const noexcept {
  const Node& found = at(node);
  if (found.kind != PickleKind::bytes && found.kind != PickleKind::big_integer) return {};
  return view(found);
}

std::span<const PickleNode> Pickle::tuple_items(PickleNode node) const noexcept {
  const Node& found = at(node);
  if (found.kind != PickleKind::tuple) return {};
  return std::span(operands_).subspan(low(found.value), high(found.value));
}

std::optional<uint32_t> Pickle::global(PickleNode node) const noexcept {
  const Node& found = at(node);
  if (found.kind != PickleKind::global) return std::nullopt;
  return low(found.value);
}

std::optional<PickleCall> Pickle::call(PickleNode node) const noexcept {
  const Node& found = at(node);
  if (found.kind != PickleKind::call && found.kind != PickleKind::instance) return std::nullopt;
  return PickleCall{.callee = low(found.value), .arguments = high(found.value)};
}

// The reader has checked the tuple.
std::optional<PickleStorage> Pickle::storage(PickleNode node) const noexcept {
  const Node& found = at(node);
  if (found.kind != PickleKind::storage) return std::nullopt;
  const std::span<const PickleNode> items = tuple_items(low(found.value));
  PickleStorage storage = {.persistent_id = low(found.value),
                           .type = items[1],
                           .key = characters(items[2]),
                           .location = characters(items[3]),
                           .numel = at(items[4]).value,
                           .view = std::nullopt};
  if (items.size() > 5) storage.view = items[5];
  return storage;
}

std::vector<PickleNode> Pickle::appended(PickleNode node) const {
  std::vector<PickleNode> result;
  for (uint32_t i = at(node).first_step; i != kPickleNoStep; i = steps_[i].next) {
    if (steps_[i].kind != PickleStepKind::append) continue;
    const std::span<const PickleNode> items = operands(steps_[i]);
    result.insert(result.end(), items.begin(), items.end());
  }
  return result;
}

std::vector<PickleEntry> Pickle::entries(PickleNode node) const {
  std::vector<PickleEntry> result;
  for (uint32_t i = at(node).first_step; i != kPickleNoStep; i = steps_[i].next) {
    if (steps_[i].kind != PickleStepKind::set_items) continue;
    const std::span<const PickleNode> items = operands(steps_[i]);
    for (size_t k = 0; k + 1 < items.size(); k += 2)
      result.push_back({.key = items[k], .value = items[k + 1]});
  }
  return result;
}

std::vector<PickleNode> Pickle::states(PickleNode node) const {
  std::vector<PickleNode> result;
  for (uint32_t i = at(node).first_step; i != kPickleNoStep; i = steps_[i].next)
    if (steps_[i].kind == PickleStepKind::build) result.push_back(operands(steps_[i]).front());
  return result;
}

}  // namespace headrace
