// SPDX-License-Identifier: Apache-2.0
// Emits a pickle of protocol 2, opcode by opcode, as torch.save writes one: every reader since Python 2.3 takes it.
// One thread.
// Owns the bytes until finish().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include <headrace/error.h>
#include <headrace/export.h>
#include <headrace/tensor.h>

namespace headrace {

namespace format {
enum class Opcode : uint8_t;
}

// A dense tensor as torch pickles it: a view of a storage that stands elsewhere in the file.
struct TensorPickle {
  DType dtype = DType::float32;
  std::string_view storage_key;  // "0", "1", ...
  std::string_view location = "cpu";
  uint64_t storage_bytes = 0;           // of the whole storage
  uint64_t storage_offset = 0;          // in elements
  std::span<const int64_t> sizes = {};  // in elements
  std::span<const int64_t> strides = {};
  bool requires_grad = false;
  bool conjugate = false;  // torch.Tensor.is_conj
  bool negative = false;   // torch.Tensor.is_neg
};

// The caller keeps the order of a stack machine: operands first. The first call that cannot be written makes all later
// ones void, and finish() tells it.
class HEADRACE_EXPORT PickleWriter {
 public:
  using MemoId = uint32_t;

  PickleWriter();

  // Ends the pickle. The writer is empty then, and of no further use.
  Result<std::string> finish();
  size_t size_bytes() const noexcept { return bytes_.size(); }

  // Each pushes one object.
  void none();
  void boolean(bool value);
  void integer(int64_t value);
  // Two's complement, least byte first; at most 255 bytes, what one LONG1 holds. Repetitions of the sign are left out.
  void big_integer(std::span<const std::byte> value);
  void real(double value);
  // UTF-8; lone surrogates pass.
  void text(std::string_view value);
  // The same, but a text that was written like this before becomes a reference to it.
  void shared_text(std::string_view value);
  // As protocol 2 has no bytes: _codecs.encode(the same as latin-1 text, "latin1").
  void bytes(std::span<const std::byte> value);
  // A name that was written before becomes a reference. Python 2's names, as in "__builtin__", "set": all versions read them.
  void global(std::string_view module, std::string_view name);
  void empty_list();
  void empty_dict();
  void ordered_dict();

  // Pops what they take.
  void mark();
  void tuple_from_mark();
  void tuple_of(uint32_t count);  // 0 to 3
  void append();
  void appends();
  void setitem();
  void setitems();
  void reduce();
  void newobj();
  void build();
  void persistent_id();

  // Names what is on top of the stack, and pushes it again.
  MemoId memoize();
  void get(MemoId id);

  // torch._utils._rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, OrderedDict()), with the dtype
  // and _rebuild_tensor_v3 for element types that have no storage class of their own. Not for quantised types.
  void tensor(const TensorPickle& tensor);
  // torch._utils._rebuild_parameter(tensor, requires_grad, OrderedDict()).
  void parameter(const TensorPickle& data, bool requires_grad);

 private:
  void put(format::Opcode opcode);
  void put_number(uint64_t value, size_t bytes);  // least byte first
  void fail(std::string detail);
  void integers(std::span<const int64_t> values);
  void tensor_storage(const TensorPickle& tensor, const DTypeFacts& facts);

  std::string bytes_;
  MemoId memo_next_ = 0;
  std::unordered_map<std::string, MemoId> texts_;
  std::unordered_map<std::string, MemoId> globals_;  // "module\nname"
  std::optional<Error> error_;
};

}  // namespace headrace
