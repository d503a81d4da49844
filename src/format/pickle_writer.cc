// SPDX-License-Identifier: Apache-2.0
// The arguments of torch's rebuild functions are those that torch 2.13 writes.
// One thread.
// See the header for what is owned.
#include <headrace/pickle_writer.h>

#include <bit>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "format/pickle_opcodes.h"
#include "format/utf8.h"

namespace headrace {

using format::Opcode;
using format::Surrogates;
using format::valid_utf8_bytes;

void PickleWriter::put(Opcode opcode) { bytes_ += static_cast<char>(opcode); }

void PickleWriter::none() { put(Opcode::none); }
void PickleWriter::boolean(bool value) { put(value ? Opcode::newtrue : Opcode::newfalse); }
void PickleWriter::empty_list() { put(Opcode::empty_list); }
void PickleWriter::empty_dict() { put(Opcode::empty_dict); }
void PickleWriter::mark() { put(Opcode::mark); }
void PickleWriter::tuple_from_mark() { put(Opcode::tuple); }
void PickleWriter::append() { put(Opcode::append); }
void PickleWriter::appends() { put(Opcode::appends); }
void PickleWriter::setitem() { put(Opcode::setitem); }
void PickleWriter::setitems() { put(Opcode::setitems); }
void PickleWriter::reduce() { put(Opcode::reduce); }
void PickleWriter::newobj() { put(Opcode::newobj); }
void PickleWriter::build() { put(Opcode::build); }
void PickleWriter::persistent_id() { put(Opcode::binpersid); }

PickleWriter::PickleWriter() {
  put(Opcode::proto);
  put_number(2, 1);
}

Result<std::string> PickleWriter::finish() {
  if (error_.has_value()) return std::unexpected(std::move(*error_));
  put(Opcode::stop);
  return std::move(bytes_);
}

void PickleWriter::put_number(uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
}

void PickleWriter::fail(std::string detail) {
  if (error_.has_value()) return;
  error_.emplace();
  error_->code = ErrorCode::invalid_argument;
  error_->operation = "write pickle";
  error_->detail = std::move(detail);
}

// The shortest of four forms, as in Python's pickler.
void PickleWriter::integer(int64_t value) {
  if (value >= 0 && value <= 0xff) {
    put(Opcode::binint1);
    put_number(static_cast<uint64_t>(value), 1);
  } else if (value >= 0 && value <= 0xffff) {
    put(Opcode::binint2);
    put_number(static_cast<uint64_t>(value), 2);
  } else if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    put(Opcode::binint);
    put_number(std::bit_cast<uint64_t>(value), 4);
  } else {
    std::byte bytes[sizeof(value)];
    for (size_t i = 0; i < sizeof(value); ++i)
      bytes[i] = std::byte(std::bit_cast<uint64_t>(value) >> (8 * i) & 0xff);
    big_integer(bytes);
  }
}

void PickleWriter::big_integer(std::span<const std::byte> value) {
  const auto sign = [](std::byte byte) { return (byte & std::byte{0x80}) != std::byte{0}; };
  while (value.size() > 1) {
    const bool negative = sign(value[value.size() - 2]);
    if (value.back() != (negative ? std::byte{0xff} : std::byte{0})) break;
    value = value.first(value.size() - 1);
  }
  if (value.size() == 1 && value[0] == std::byte{0}) value = {};
  if (value.size() > 0xff) return fail(fmt::format("an integer of {} bytes; 255 are the most", value.size()));
  put(Opcode::long1);
  put_number(value.size(), 1);
  bytes_.append(reinterpret_cast<const char*>(value.data()), value.size());
}

// The only number with its greatest byte first.
void PickleWriter::real(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  put(Opcode::binfloat);
  for (int shift = 56; shift >= 0; shift -= 8)
    bytes_ += static_cast<char>(bits >> shift & 0xff);
}

void PickleWriter::text(std::string_view value) {
  if (value.size() > std::numeric_limits<uint32_t>::max())
    return fail(fmt::format("a text of {} bytes; protocol 2 has texts of less than 4 GiB", value.size()));
  const size_t valid = valid_utf8_bytes(std::as_bytes(std::span(value)), Surrogates::accept);
  if (valid != value.size()) return fail(fmt::format("a text that is not UTF-8 at its byte {}", valid));
  put(Opcode::binunicode);
  put_number(value.size(), 4);
  bytes_ += value;
}

void PickleWriter::shared_text(std::string_view value) {
  const auto [found, is_new] = texts_.try_emplace(std::string(value), memo_next_);
  if (!is_new) return get(found->second);
  text(value);
  memoize();
}

void PickleWriter::bytes(std::span<const std::byte> value) {
  global("_codecs", "encode");
  // The sizes are known first, so that nothing of the value is copied into a text of its own.
  uint64_t text_bytes = value.size();
  for (const std::byte byte : value)
    text_bytes += static_cast<uint64_t>(byte) >> 7;
  if (text_bytes > std::numeric_limits<uint32_t>::max())
    return fail(
        fmt::format("bytes that take {} bytes as latin-1 text; protocol 2 has texts of less than 4 GiB", text_bytes));
  put(Opcode::binunicode);
  put_number(text_bytes, 4);
  for (const std::byte byte : value) {
    const auto character = static_cast<uint8_t>(byte);
    if (character < 0x80) {
      bytes_ += static_cast<char>(character);
    } else {
      bytes_ += static_cast<char>(0xc0 | character >> 6);
      bytes_ += static_cast<char>(0x80 | (character & 0x3f));
    }
  }
  shared_text("latin1");
  tuple_of(2);
  reduce();
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  if (module.contains('\n') || name.contains('\n')) return fail("a global with an end of line in its name");
  std::string line = fmt::format("{}\n{}", module, name);
  if (valid_utf8_bytes(std::as_bytes(std::span(line)), Surrogates::refuse) != line.size())
    return fail("a global whose name is not UTF-8");
  if (const auto found = globals_.find(line); found != globals_.end()) return get(found->second);
  put(Opcode::global);
  bytes_ += line;
  bytes_ += '\n';
  globals_.emplace(std::move(line), memoize());
}

void PickleWriter::ordered_dict() {
  global("collections", "OrderedDict");
  tuple_of(0);
  reduce();
}

void PickleWriter::tuple_of(uint32_t count) {
  constexpr Opcode kTuples[] = {Opcode::empty_tuple, Opcode::tuple1, Opcode::tuple2, Opcode::tuple3};
  HEADRACE_CHECK(count < std::size(kTuples));
  put(kTuples[count]);
}

PickleWriter::MemoId PickleWriter::memoize() {
  const MemoId id = memo_next_++;
  if (id <= 0xff) {
    put(Opcode::binput);
    put_number(id, 1);
  } else {
    put(Opcode::long_binput);
    put_number(id, 4);
  }
  return id;
}

void PickleWriter::get(MemoId id) {
  HEADRACE_CHECK(id < memo_next_);
  if (id <= 0xff) {
    put(Opcode::binget);
    put_number(id, 1);
  } else {
    put(Opcode::long_binget);
    put_number(id, 4);
  }
}

void PickleWriter::integers(std::span<const int64_t> values) {
  if (values.size() > 3) mark();
  for (const int64_t value : values)
    integer(value);
  if (values.size() > 3)
    tuple_from_mark();
  else
    tuple_of(static_cast<uint32_t>(values.size()));
}

void PickleWriter::tensor_storage(const TensorPickle& tensor, const DTypeFacts& facts) {
  const bool untyped = facts.torch_storage.empty();
  mark();
  shared_text("storage");
  if (untyped)
    global("torch.storage", "UntypedStorage");
  else
    global("torch", facts.torch_storage);
  text(tensor.storage_key);
  shared_text(tensor.location);
  integer(static_cast<int64_t>(untyped ? tensor.storage_bytes : tensor.storage_bytes / facts.torch_bytes));
  tuple_from_mark();
  persistent_id();
}

void PickleWriter::tensor(const TensorPickle& tensor) {
  const DTypeFacts& facts = dtype_facts(tensor.dtype);
  if (facts.torch_bytes == 0) return fail(fmt::format("torch has no element type {}", facts.name));
  if (tensor.dtype >= DType::quint8)
    return fail(fmt::format("a tensor of {} needs the parameters of its quantisation", facts.name));
  if (tensor.storage_bytes % facts.torch_bytes != 0 && !facts.torch_storage.empty())
    return fail(fmt::format("a storage of {} bytes is no whole number of {}", tensor.storage_bytes, facts.name));
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  if (tensor.storage_bytes > kMax || tensor.storage_offset > kMax)
    return fail("a storage, or an offset in it, of 2^63 and more");
  const bool has_class = !facts.torch_storage.empty();
  global("torch._utils", has_class ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  mark();
  tensor_storage(tensor, facts);
  integer(static_cast<int64_t>(tensor.storage_offset));
  integers(tensor.sizes);
  integers(tensor.strides);
  boolean(tensor.requires_grad);
  ordered_dict();  // one of its own for each tensor: hooks are added to it
  if (!has_class) global("torch", facts.name);
  if (tensor.conjugate || tensor.negative) {
    empty_dict();
    for (const auto& [set, name] : {std::pair(tensor.conjugate, "conj"), std::pair(tensor.negative, "neg")}) {
      if (!set) continue;
      shared_text(name);
      boolean(true);
      setitem();
    }
  }
  tuple_from_mark();
  reduce();
}

void PickleWriter::parameter(const TensorPickle& data, bool requires_grad) {
  global("torch._utils", "_rebuild_parameter");
  tensor(data);
  boolean(requires_grad);
  ordered_dict();
  tuple_of(3);
  reduce();
}

}  // namespace headrace
