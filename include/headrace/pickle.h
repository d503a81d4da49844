// SPDX-License-Identifier: Apache-2.0
// The pickles inside checkpoint files, read without running them: parse_pickle checks one and gives its program.
// Any thread: a Pickle does not change once parsed, and parsing touches nothing but its arguments.
// A Pickle owns its program; texts, bytes and big integers are views into the input, which must outlive it.
//
// What is read and what is refused stands in docs/formats/pickle.md: the opcodes and rules of torch's weights_only
// unpickler. Nothing is imported, called or constructed here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headrace/error.h>
#include <headrace/export.h>

namespace headrace {

// The index of a node, in the order of creation. A node that must not be told apart (None, True, False, the empty tuple)
// exists once; every other one is an object of its own, and the same index is the same object.
using PickleNode = uint32_t;

enum class PickleKind : uint8_t {
  none,
  boolean,
  integer,      // fits in int64_t
  big_integer,  // does not
  real,
  text,   // UTF-8, in which lone surrogates may occur (torch decodes with "surrogatepass")
  bytes,  // SHORT_BINSTRING, a str of Python 2: torch.load decodes it by its `encoding`
  tuple,
  list,
  dict,
  set,  // always empty; a set with elements is a call of builtins.set
  global,
  storage,   // BINPERSID
  call,      // REDUCE: callee(*arguments)
  instance,  // NEWOBJ: callee.__new__(callee, *arguments)
};

// What a global stands for, which decides what may be done with it. All but the first two are known.
enum class PickleRole : uint8_t {
  unknown,          // torch's weights_only refuses it too, unless the user has added it
  never,            // in a module that weights_only never admits: sys, os, posix, nt
  constant,         // a dtype or a quantisation scheme: cannot be called
  storage_class,    // torch.FloatStorage and so on: only names the type of a storage
  untyped_storage,  // torch.storage.UntypedStorage
  function,         // gives neither a tensor nor a container
  tensor_function,  // gives a tensor or a parameter
  tensor_class,     // torch.Tensor, torch.FloatTensor, ...
  parameter,        // torch.nn.parameter.Parameter
  ordered_dict,     // collections.OrderedDict
  counter,          // collections.Counter
  plain_class,      // torch.Size, torch.device, bytearray, set, complex, TypedStorage
};

enum class UnknownGlobals : uint8_t {
  refuse,   // an error at the first of them, as in weights_only without additions
  collect,  // all are recorded; whatever is made from them may be called, appended to, set and built. For inspection,
            // and to decide whether torch's own unpickler has to take over
};

enum class PickleProtocols : uint8_t {
  torch,  // the opcodes that torch's weights_only unpickler takes: those of protocol 2, mostly
  later,  // and those of protocols 4 and 5 that Python's pickler writes for plain objects; others are told as
          // ErrorCode::unavailable, since the file may be good. For inspection and conversion
};

struct PickleOptions {
  uint64_t base_offset_bytes = 0;  // where the input starts in its file: added to every offset told
  UnknownGlobals unknown_globals = UnknownGlobals::refuse;
  PickleProtocols protocols = PickleProtocols::torch;
};

// Python 2's names are told as Python 3's: __builtin__.set is builtins.set.
struct PickleGlobal {
  std::string qualified_name;  // "module.name"
  uint32_t module_bytes = 0;   // length of "module" in it
  PickleRole role = PickleRole::unknown;
  uint64_t offset_bytes = 0;  // of the first GLOBAL that names it

  std::string_view module() const noexcept { return std::string_view(qualified_name).substr(0, module_bytes); }
  std::string_view name() const noexcept { return std::string_view(qualified_name).substr(module_bytes + 1); }
  bool known() const noexcept { return role > PickleRole::never; }
};

enum class PickleStepKind : uint8_t {
  create,     // nodes first .. first + count - 1, in this order; each needs only nodes before it
  append,     // operands go to the end of list `first`
  set_items,  // operands are key, value, key, value, ...: first[key] = value, in this order
  build,      // one operand: the state of `first`
};

struct PickleStep {
  PickleStepKind kind = PickleStepKind::create;
  PickleNode first = 0;
  uint32_t count = 0;           // of nodes created, or of operands
  uint32_t operands_begin = 0;  // for Pickle::operands
  uint32_t next = 0;            // the next step with the same `first` that is no create; none: kPickleNoStep
};
inline constexpr uint32_t kPickleNoStep = UINT32_MAX;

struct PickleCall {
  PickleNode callee = 0;     // a global; with UnknownGlobals::collect also what unknown globals gave
  PickleNode arguments = 0;  // a tuple
};

struct PickleEntry {
  PickleNode key = 0;
  PickleNode value = 0;
};

// The persistent id of a storage: ("storage", type, key, location, numel[, view]).
struct PickleStorage {
  PickleNode persistent_id = 0;  // the tuple
  PickleNode type = 0;           // a global
  std::string_view key;
  std::string_view location;       // "cpu", "cuda:0", ...
  uint64_t numel = 0;              // elements of the type; bytes for UntypedStorage
  std::optional<PickleNode> view;  // legacy files: None, or the tuple (key, offset, numel) of a view of this storage
};

// One pickle as a straight-line program. Doing its steps in order gives exactly what a stack unpickler would:
// operands are nodes, each created by an earlier step, so that neither stack nor memo is needed. The result is root().
//
// Functions that take a node want one below node_count(). They give nothing (nullopt, an empty span, an empty vector) for
// a node of another kind. None is recursive: a list may well contain itself.
class Pickle {
 public:
  HEADRACE_EXPORT PickleNode root() const noexcept;
  HEADRACE_EXPORT uint32_t node_count() const noexcept;
  // Bytes up to and with STOP: the next pickle of a legacy file starts here.
  HEADRACE_EXPORT uint64_t consumed_bytes() const noexcept;
  // What PROTO said last; 0 when there is none.
  HEADRACE_EXPORT uint8_t protocol() const noexcept;
  // The distinct ones, by first occurrence.
  HEADRACE_EXPORT std::span<const PickleGlobal> globals() const noexcept;

  // The program.
  HEADRACE_EXPORT std::span<const PickleStep> steps() const noexcept;
  // Of append, set_items and build; none for create.
  HEADRACE_EXPORT std::span<const PickleNode> operands(const PickleStep& step) const noexcept;

  // One node.
  HEADRACE_EXPORT PickleKind kind(PickleNode node) const noexcept;
  // Of the opcode that made it (for nodes that exist once: of the first), in the file.
  HEADRACE_EXPORT uint64_t offset_bytes(PickleNode node) const noexcept;
  HEADRACE_EXPORT std::optional<bool> boolean(PickleNode node) const noexcept;
  HEADRACE_EXPORT std::optional<int64_t> integer(PickleNode node) const noexcept;
  HEADRACE_EXPORT std::optional<double> real(PickleNode node) const noexcept;
  HEADRACE_EXPORT std::optional<std::string_view> text(PickleNode node) const noexcept;
  // Of bytes, and of big_integer: two's complement, least byte first.
  HEADRACE_EXPORT std::span<const std::byte> bytes(PickleNode node) const noexcept;
  HEADRACE_EXPORT std::span<const PickleNode> tuple_items(PickleNode node) const noexcept;
  // Of global: an index into globals().
  HEADRACE_EXPORT std::optional<uint32_t> global(PickleNode node) const noexcept;
  // Of call and instance.
  HEADRACE_EXPORT std::optional<PickleCall> call(PickleNode node) const noexcept;
  HEADRACE_EXPORT std::optional<PickleStorage> storage(PickleNode node) const noexcept;
  // Of global: its own; of call and instance: the callee's; otherwise unknown.
  HEADRACE_EXPORT PickleRole role(PickleNode node) const noexcept;

  // The finished graph: what all steps together did to one node, in order.
  HEADRACE_EXPORT std::vector<PickleNode> appended(PickleNode node) const;
  // Every key that was set, a key set twice included: the last one counts. What OrderedDict(...) got as an argument, as
  // Python 2 wrote it, is not among them.
  HEADRACE_EXPORT std::vector<PickleEntry> entries(PickleNode node) const;
  HEADRACE_EXPORT std::vector<PickleNode> states(PickleNode node) const;

 private:
  friend class PickleReader;
  struct Node {
    PickleKind kind = PickleKind::none;
    PickleRole role = PickleRole::unknown;
    uint32_t offset = 0;
    uint64_t value = 0;  // the number itself, or two halves: begin and length, callee and arguments
    uint32_t first_step = kPickleNoStep;
    uint32_t last_step = kPickleNoStep;
  };
  static_assert(sizeof(Node) == 24);

  const Node& at(PickleNode node) const noexcept;
  std::span<const std::byte> view(const Node& node) const noexcept;
  std::string_view characters(PickleNode node) const noexcept;

  std::span<const std::byte> input_;
  uint64_t base_offset_bytes_ = 0;
  std::vector<Node> nodes_;
  std::vector<PickleStep> steps_;
  std::vector<PickleNode> operands_;  // of steps and tuples
  std::vector<PickleGlobal> globals_;
  PickleNode root_ = 0;
  uint32_t consumed_bytes_ = 0;
  uint8_t protocol_ = 0;
};

// Reads the pickle at the start of `input`; what follows its STOP is not looked at. Fails with ErrorCode::corrupt at the
// offset of the opcode at fault. Memory stays within a small multiple of the bytes read, whatever they say.
HEADRACE_EXPORT Result<Pickle> parse_pickle(std::span<const std::byte> input, const PickleOptions& options = {});

}  // namespace headrace
