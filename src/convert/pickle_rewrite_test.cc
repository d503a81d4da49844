// SPDX-License-Identifier: Apache-2.0
// Objects that torch pickled, pickled again: they read as the same objects, under other names of storages.
// One thread.
// Owns nothing.
#include "convert/pickle_rewrite.h"

#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/torch_pickles.h"

namespace headrace::convert {
namespace {

constexpr PickleOptions kAll = {.unknown_globals = UnknownGlobals::collect};

std::vector<std::byte> from_hex(std::string_view hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

// The object as a text; keys of storages as K.
class Shown {
 public:
  explicit Shown(const Pickle& pickle) : pickle_(pickle) {}
  std::string of(PickleNode node) {
    switch (pickle_.kind(node)) {
      case PickleKind::none: return "None";
      case PickleKind::boolean: return *pickle_.boolean(node) ? "True" : "False";
      case PickleKind::integer: return fmt::format("{}", *pickle_.integer(node));
      case PickleKind::big_integer: return fmt::format("big{}", pickle_.bytes(node).size());
      case PickleKind::real: return fmt::format("{}", *pickle_.real(node));
      case PickleKind::text: return fmt::format("'{}'", *pickle_.text(node));
      case PickleKind::global: return pickle_.globals()[*pickle_.global(node)].qualified_name;
      case PickleKind::storage: return fmt::format("storage({})", pickle_.storage(node)->numel);
      default: break;
    }
    if (!open_.insert(node).second) return "...";
    std::string text = fmt::format("{}<", static_cast<int>(pickle_.kind(node)));
    for (const PickleNode item : pickle_.tuple_items(node))
      text += fmt::format("{},", of(item));
    if (const std::optional<PickleCall> call = pickle_.call(node)) text += of(call->callee) + of(call->arguments);
    for (const PickleNode item : pickle_.appended(node))
      text += fmt::format("+{}", of(item));
    for (const PickleEntry& entry : pickle_.entries(node))
      text += fmt::format("{}:{};", of(entry.key), of(entry.value));
    for (const PickleNode state : pickle_.states(node))
      text += fmt::format("!{}", of(state));
    open_.erase(node);
    return text + ">";
  }

 private:
  const Pickle& pickle_;
  std::set<PickleNode> open_;
};

std::string rewritten(const std::vector<std::byte>& bytes, StorageIds ids) {
  const Result<Pickle> pickle = parse_pickle(bytes, kAll);
  EXPECT_TRUE(pickle.has_value());
  const Result<std::string> again =
      rewrite_pickle(*pickle, ids, [](const PickleStorage& storage) { return fmt::format("new-{}", storage.key); });
  EXPECT_TRUE(again.has_value()) << again.error().message();
  return *again;
}

TEST(RewritePickle, ReadsAsTheSameObject) {
  for (const std::string_view hex :
       {test::kTorchTensor, test::kTorchParameter, test::kTorchUint16, test::kTorchPython}) {
    const std::vector<std::byte> bytes = from_hex(hex);
    const Pickle before = *parse_pickle(bytes, kAll);
    for (const StorageIds ids : {StorageIds::zip, StorageIds::legacy}) {
      const std::string text = rewritten(bytes, ids);
      const Result<Pickle> after = parse_pickle(std::as_bytes(std::span(text)), kAll);
      ASSERT_TRUE(after.has_value()) << after.error().message();
      EXPECT_EQ(Shown(before).of(before.root()), Shown(*after).of(after->root()));
      for (PickleNode node = 0; node < after->node_count(); ++node) {
        const std::optional<PickleStorage> storage = after->storage(node);
        if (!storage) continue;
        EXPECT_TRUE(storage->key.starts_with("new-"));
        EXPECT_EQ(storage->view.has_value(), ids == StorageIds::legacy);
      }
    }
  }
}

TEST(RewritePickle, AListInItselfAndADeepOneStayWhatTheyAre) {
  // l = []; l.append(l)
  const std::string own("\x80\x02]q\0h\0a.", 9);
  const std::vector<std::byte> bytes(std::as_bytes(std::span(own)).begin(), std::as_bytes(std::span(own)).end());
  const std::string again = rewritten(bytes, StorageIds::zip);
  const Pickle pickle = *parse_pickle(std::as_bytes(std::span(again)));
  ASSERT_EQ(pickle.appended(pickle.root()).size(), 1U);
  EXPECT_EQ(pickle.appended(pickle.root())[0], pickle.root());

  constexpr size_t kDepth = 200'000;  // more than a thread's stack would bear
  std::string deep = "\x80\x02";
  deep += std::string(kDepth, ']') + std::string(kDepth - 1, 'a') + ".";
  const std::string deep_again =
      rewritten({std::as_bytes(std::span(deep)).begin(), std::as_bytes(std::span(deep)).end()}, StorageIds::zip);
  EXPECT_TRUE(parse_pickle(std::as_bytes(std::span(deep_again))).has_value());
}

TEST(RewritePickle, WhatProtocolTwoCannotSayIsRefusedByName) {
  const std::string text("\x80\x02U\x03old.", 8);  // a str of Python 2
  const Pickle pickle = *parse_pickle(std::as_bytes(std::span(text)));
  const Result<std::string> again = rewrite_pickle(pickle, StorageIds::zip, [](const PickleStorage&) { return ""; });
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::unavailable);
  EXPECT_NE(again.error().detail.find("Python 2"), std::string::npos);
}

}  // namespace
}  // namespace headrace::convert
