// SPDX-License-Identifier: Apache-2.0
// The object is walked as a tree, each node where it is first needed; what is needed again is named by the memo. A stack of
// our own keeps deep objects from using up the thread's.
// Any thread: a pure function.
// Owns what it returns.
#include "convert/pickle_rewrite.h"

#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <headrace/pickle_writer.h>

namespace headrace::convert {
namespace {

class Rewriter {
 public:
  Rewriter(const Pickle& pickle, StorageIds ids, const std::function<std::string(const PickleStorage&)>& key_of)
      : pickle_(pickle), ids_(ids), key_of_(key_of), memo_(pickle.node_count()), open_(pickle.node_count()) {}

  Result<std::string> run() {
    push_node(pickle_.root());
    while (!work_.empty() && !error_) {
      const Work next = work_.back();
      work_.pop_back();
      if (next.step == Step::node)
        begin(next.node);
      else
        act(next);
    }
    if (error_) return std::unexpected(*std::move(error_));
    return writer_.finish();
  }

 private:
  enum class Step : uint8_t {
    node,  // write it
    mark,
    appends,
    setitems,
    build,
    reduce,  // and name it
    newobj,  // and name it
    tuple,   // and name it
  };
  struct Work {
    Step step = Step::node;
    PickleNode node = 0;
  };

  // Work is done from the top of the stack: what comes first is pushed last.
  void push(Step step, PickleNode node = 0) { work_.push_back({step, node}); }
  void push_node(PickleNode node) { push(Step::node, node); }

  void refuse(PickleNode node, std::string_view what) {
    error_ = Error{
        .code = ErrorCode::unavailable,
        .operation = "convert",
        .offset_bytes = pickle_.offset_bytes(node),
        .detail = fmt::format("the file's object holds {}, which cannot be written for another container; load it "
                              "with torch.load and save it again",
                              what)};
  }

  void begin(PickleNode node) {
    if (memo_[node]) return writer_.get(*memo_[node]);
    if (open_[node]) return refuse(node, "a tuple that holds itself");
    switch (pickle_.kind(node)) {
      case PickleKind::none: return writer_.none();
      case PickleKind::boolean: return writer_.boolean(*pickle_.boolean(node));
      case PickleKind::integer: return writer_.integer(*pickle_.integer(node));
      case PickleKind::big_integer: return writer_.big_integer(pickle_.bytes(node));
      case PickleKind::real: return writer_.real(*pickle_.real(node));
      case PickleKind::text: return writer_.shared_text(*pickle_.text(node));
      case PickleKind::bytes: return refuse(node, "a string of Python 2");
      case PickleKind::global: return write_global(node);
      case PickleKind::tuple: return begin_tuple(node);
      case PickleKind::list: writer_.empty_list(); return name_and_fill(node);
      case PickleKind::dict: writer_.empty_dict(); return name_and_fill(node);
      case PickleKind::set:
        writer_.global("__builtin__", "set");
        writer_.tuple_of(0);
        writer_.reduce();
        return name_and_fill(node);
      case PickleKind::storage: return begin_storage(node);
      case PickleKind::call:
      case PickleKind::instance: break;
    }
    const PickleCall call = *pickle_.call(node);
    open_[node] = true;
    push(pickle_.kind(node) == PickleKind::call ? Step::reduce : Step::newobj, node);
    push_node(call.arguments);
    push_node(call.callee);
  }

  // Python 3's names of the built-in module are unknown to Python 2, and protocol 2 is its own.
  void write_global(PickleNode node) {
    const PickleGlobal& global = pickle_.globals()[*pickle_.global(node)];
    writer_.global(global.module() == "builtins" ? "__builtin__" : global.module(), global.name());
  }

  void begin_tuple(PickleNode node) {
    const std::span<const PickleNode> items = pickle_.tuple_items(node);
    if (items.empty()) return writer_.tuple_of(0);
    open_[node] = true;
    push(Step::tuple, node);
    for (size_t i = items.size(); i-- > 0;)
      push_node(items[i]);
    if (items.size() > 3) writer_.mark();
  }

  void begin_storage(PickleNode node) {
    const PickleStorage storage = *pickle_.storage(node);
    if (storage.view && pickle_.kind(*storage.view) != PickleKind::none)
      return refuse(node, "a storage that is a view of another one, as torch before 0.4 wrote them");
    writer_.mark();
    writer_.shared_text("storage");
    write_global(storage.type);
    writer_.shared_text(key_of_(storage));
    writer_.shared_text(storage.location);
    writer_.integer(static_cast<int64_t>(storage.numel));
    if (ids_ == StorageIds::legacy) writer_.none();
    writer_.tuple_from_mark();
    writer_.persistent_id();
    memo_[node] = writer_.memoize();
  }

  void name_and_fill(PickleNode node) {
    memo_[node] = writer_.memoize();
    fill(node);
  }

  // What was appended, set and built, in this order.
  void fill(PickleNode node) {
    const std::vector<PickleNode> states = pickle_.states(node);
    for (size_t i = states.size(); i-- > 0;) {
      push(Step::build);
      push_node(states[i]);
    }
    const std::vector<PickleEntry> entries = pickle_.entries(node);
    if (!entries.empty()) {
      push(Step::setitems);
      for (size_t i = entries.size(); i-- > 0;) {
        push_node(entries[i].value);
        push_node(entries[i].key);
      }
      push(Step::mark);
    }
    const std::vector<PickleNode> appended = pickle_.appended(node);
    if (appended.empty()) return;
    push(Step::appends);
    for (size_t i = appended.size(); i-- > 0;)
      push_node(appended[i]);
    push(Step::mark);
  }

  void act(const Work& work) {
    switch (work.step) {
      case Step::node: return;
      case Step::mark: return writer_.mark();
      case Step::appends: return writer_.appends();
      case Step::setitems: return writer_.setitems();
      case Step::build: return writer_.build();
      case Step::reduce:
        writer_.reduce();
        open_[work.node] = false;
        return name_and_fill(work.node);
      case Step::newobj:
        writer_.newobj();
        open_[work.node] = false;
        return name_and_fill(work.node);
      case Step::tuple: break;
    }
    const size_t count = pickle_.tuple_items(work.node).size();
    if (count > 3)
      writer_.tuple_from_mark();
    else
      writer_.tuple_of(static_cast<uint32_t>(count));
    open_[work.node] = false;
    memo_[work.node] = writer_.memoize();
  }

  const Pickle& pickle_;
  StorageIds ids_;
  const std::function<std::string(const PickleStorage&)>& key_of_;
  PickleWriter writer_;
  std::vector<std::optional<PickleWriter::MemoId>> memo_;  // by node
  std::vector<bool> open_;                                 // by node: it is being made
  std::vector<Work> work_;
  std::optional<Error> error_;
};

}  // namespace

Result<std::string> rewrite_pickle(const Pickle& pickle, StorageIds ids,
                                   const std::function<std::string(const PickleStorage&)>& key_of) {
  return Rewriter(pickle, ids, key_of).run();
}

}  // namespace headrace::convert
