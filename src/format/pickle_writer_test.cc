// SPDX-License-Identifier: Apache-2.0
// The pickle writer: the bytes of each function, read back by the reader, and what cannot be written. That torch loads such
// pickles was tried by hand with torch 2.13: tests/support/torch_pickles.h has what it writes itself.

#include <headrace/pickle_writer.h>

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/pickle_oracle.h"
#include "tests/support/torch_pickles.h"

namespace headrace::format {
namespace {

using namespace std::string_literals;
using test::from_hex;
using test::ParsedPickle;

std::string finished(PickleWriter& writer) {
  Result<std::string> bytes = writer.finish();
  return bytes.has_value() ? *bytes : bytes.error().detail;
}

// Without PROTO and STOP.
template <class F>
std::string body(F&& write) {
  PickleWriter writer;
  write(writer);
  const std::string bytes = finished(writer);
  EXPECT_TRUE(bytes.starts_with("\x80\2") && bytes.ends_with('.')) << bytes;
  return bytes.substr(2, bytes.size() - 3);
}

std::string read(std::string_view bytes) { return ParsedPickle(bytes).text(); }

// A pickle without what the memo adds: what torch puts there and we do not may differ.
template <class F>
std::string read_back(F&& write) {
  PickleWriter writer;
  write(writer);
  return read(finished(writer));
}

std::string integer(int64_t value) {
  return body([&](PickleWriter& writer) { writer.integer(value); });
}

const std::vector<int64_t> kSizes = {2, 3};
const std::vector<int64_t> kStrides = {3, 1};
const TensorPickle kTensor = {.storage_key = "0", .storage_bytes = 24, .sizes = kSizes, .strides = kStrides};

TEST(PickleWriter, EachValueHasTheShortestForm) {
  EXPECT_EQ(body([](PickleWriter& writer) { writer.none(); }), "N");
  EXPECT_EQ(body([](PickleWriter& writer) { writer.boolean(true); }), "\x88");
  EXPECT_EQ(body([](PickleWriter& writer) { writer.boolean(false); }), "\x89");
  EXPECT_EQ(body([](PickleWriter& writer) { writer.real(-1.5); }), "G\xbf\xf8\0\0\0\0\0\0"s);
  EXPECT_EQ(body([](PickleWriter& writer) { writer.text("\u00fc"); }), "X\2\0\0\0\xc3\xbc"s);
  EXPECT_EQ(body([](PickleWriter& writer) { writer.empty_list(); }), "]");
  EXPECT_EQ(body([](PickleWriter& writer) { writer.empty_dict(); }), "}");
  EXPECT_EQ(integer(0), "K\0"s);
  EXPECT_EQ(integer(255), "K\xff");
  EXPECT_EQ(integer(256), "M\0\1"s);
  EXPECT_EQ(integer(65535), "M\xff\xff");
  EXPECT_EQ(integer(65536), "J\0\0\1\0"s);
  EXPECT_EQ(integer(-1), "J\xff\xff\xff\xff");
  EXPECT_EQ(integer(-2147483648), "J\0\0\0\x80"s);
  EXPECT_EQ(integer(2147483648), "\x8a\5\0\0\0\x80\0"s);
  EXPECT_EQ(integer(-2147483649), "\x8a\5\xff\xff\xff\x7f\xff");
  EXPECT_EQ(integer(-(int64_t{1} << 40)), "\x8a\6\0\0\0\0\0\xff"s);
  EXPECT_EQ(integer(std::numeric_limits<int64_t>::min()), "\x8a\x08\0\0\0\0\0\0\0\x80"s);
}

TEST(PickleWriter, NumbersComeBackAsTheyWere) {
  for (const int64_t value : {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{127}, int64_t{128}, int64_t{-128},
                              int64_t{-129}, int64_t{1} << 31, int64_t{1} << 47, -(int64_t{1} << 55),
                              std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()})
    EXPECT_EQ(read_back([&](PickleWriter& writer) { writer.integer(value); }), fmt::format("{}", value));
  for (const double value : {0.0, -0.0, 1e308, std::numeric_limits<double>::infinity(), 5e-324})
    EXPECT_EQ(read_back([&](PickleWriter& writer) { writer.real(value); }), fmt::format("{}", value));
}

TEST(PickleWriter, BigIntegersLoseRepetitionsOfTheirSign) {
  const auto big = [](std::string_view bytes) {
    return body([&](PickleWriter& writer) { writer.big_integer(std::as_bytes(std::span(bytes))); });
  };
  EXPECT_EQ(big(""), "\x8a\0"s);
  EXPECT_EQ(big("\0\0\0"s), "\x8a\0"s);
  EXPECT_EQ(big("\xff\xff"), "\x8a\1\xff");
  EXPECT_EQ(big("\xff\0\0"s), "\x8a\2\xff\0"s);
  EXPECT_EQ(big("\x7f\xff"), "\x8a\2\x7f\xff");
  EXPECT_EQ(big("\0\0\0\0\0\0\0\0\x40"s), "\x8a\x09\0\0\0\0\0\0\0\0\x40"s);
  EXPECT_EQ(big(std::string(255, '\1')), "\x8a\xff" + std::string(255, '\1'));
}

TEST(PickleWriter, BytesBecomeLatin1Text) {
  EXPECT_EQ(body([](PickleWriter& writer) { writer.bytes(std::as_bytes(std::span("a\xff", 2))); }),
            "c_codecs\nencode\nq\0X\3\0\0\0a\xc3\xbfX\6\0\0\0latin1q\1\x86R"s);
  EXPECT_EQ(read_back([](PickleWriter& writer) { writer.bytes({}); }), "_codecs.encode('', 'latin1')");
}

TEST(PickleWriter, ContainersAndCallsAreWrittenAsAStackMachine) {
  const auto write = [](PickleWriter& writer) {
    writer.empty_list();
    writer.mark();
    writer.empty_dict();
    writer.text("k");
    for (uint32_t count = 0; count <= 3; ++count) {
      for (uint32_t i = 0; i < count; ++i)
        writer.integer(i);
      writer.tuple_of(count);
      if (count == 0) writer.setitem();
      if (count == 0) writer.mark();
    }
    writer.none();
    writer.setitems();
    writer.appends();
    writer.global("torch", "Size");
    writer.mark();
    writer.mark();
    for (uint32_t i = 0; i < 4; ++i)
      writer.integer(i);
    writer.tuple_from_mark();
    writer.tuple_from_mark();
    writer.reduce();
    writer.append();
    writer.global("torch.nn.parameter", "Parameter");
    writer.tuple_of(0);
    writer.newobj();
    writer.empty_dict();
    writer.build();
    writer.append();
  };
  EXPECT_EQ(read_back(write),
            "[{'k': (), (0,): (0, 1), (0, 1, 2): None}, torch.Size((0, 1, 2, 3)), "
            "torch.nn.parameter.Parameter.new()|{}|]");
}

TEST(PickleWriter, NamesAndSharedTextsAreWrittenOnce) {
  EXPECT_EQ(body([](PickleWriter& writer) {
              writer.global("torch", "Size");
              writer.shared_text("cpu");
              writer.global("torch", "Size");
              writer.shared_text("cpu");
              writer.text("cpu");
            }),
            "ctorch\nSize\nq\0X\3\0\0\0cpuq\1h\0h\1X\3\0\0\0cpu"s);
}

TEST(PickleWriter, TheMemoGoesBeyond256Entries) {
  const auto write = [](PickleWriter& writer) {
    writer.mark();
    std::vector<PickleWriter::MemoId> ids;
    for (uint32_t i = 0; i < 300; ++i) {
      writer.integer(i);
      ids.push_back(writer.memoize());
    }
    writer.tuple_from_mark();
    writer.mark();
    for (const uint32_t i : {0U, 255U, 256U, 299U})
      writer.get(ids[i]);
    writer.tuple_from_mark();
  };
  EXPECT_EQ(read_back(write), "(0, 255, 256, 299)");
}

TEST(PickleWriter, TensorsAndParametersAreReadAsThoseOfTorch) {
  EXPECT_EQ(read_back([](PickleWriter& writer) { writer.tensor(kTensor); }), read(from_hex(test::kTorchTensor)));
  EXPECT_EQ(read_back([](PickleWriter& writer) { writer.parameter(kTensor, true); }),
            read(from_hex(test::kTorchParameter)));
  const std::vector<int64_t> sizes = {2, 2};
  const std::vector<int64_t> strides = {2, 1};
  const TensorPickle uint16 = {
      .dtype = DType::uint16, .storage_key = "0", .storage_bytes = 8, .sizes = sizes, .strides = strides};
  EXPECT_EQ(read_back([&](PickleWriter& writer) { writer.tensor(uint16); }), read(from_hex(test::kTorchUint16)));
}

TEST(PickleWriter, ATensorsFlagsAreWritten) {
  TensorPickle tensor = {.dtype = DType::complex64, .storage_key = "7", .location = "cuda:1", .storage_bytes = 80};
  tensor.storage_offset = 3;
  tensor.requires_grad = true;
  tensor.conjugate = true;
  tensor.negative = true;
  EXPECT_EQ(
      read_back([&](PickleWriter& writer) { writer.tensor(tensor); }),
      "torch._utils._rebuild_tensor_v2(storage('storage', torch.ComplexFloatStorage, '7', 'cuda:1', 10), 3, (), (), "
      "True, collections.OrderedDict(), {'conj': True, 'neg': True})");
}

TEST(PickleWriter, EveryElementTypeOfTorchIsWrittenOrRefusedByName) {
  for (uint32_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const DTypeFacts& facts = dtype_facts(dtype);
    PickleWriter writer;
    writer.tensor({.dtype = dtype, .storage_key = "0", .storage_bytes = 48});
    const Result<std::string> bytes = writer.finish();
    const bool quantised = facts.name.starts_with('q');
    ASSERT_EQ(bytes.has_value(), facts.torch_bytes != 0 && !quantised) << facts.name;
    if (!bytes.has_value()) {
      EXPECT_TRUE(bytes.error().detail.contains(facts.name)) << bytes.error().detail;
      continue;
    }
    const std::string text = read(*bytes);
    EXPECT_TRUE(text.contains(facts.torch_storage.empty() ? fmt::format(", torch.{})", facts.name)
                                                          : fmt::format("torch.{}", facts.torch_storage)))
        << text;
  }
}

TEST(PickleWriter, ManyTensorsTakeFewBytesEach) {
  PickleWriter writer;
  writer.empty_dict();
  writer.mark();
  for (uint32_t i = 0; i < 10'000; ++i) {
    const std::string key = fmt::format("{}", i);
    TensorPickle tensor = kTensor;
    tensor.storage_key = key;
    writer.text("layer.weight." + key);
    writer.tensor(tensor);
  }
  writer.setitems();
  const std::string bytes = finished(writer);
  EXPECT_LT(bytes.size(), 10'000U * 80);
  const ParsedPickle parsed(bytes);
  ASSERT_TRUE(parsed.result.has_value());
  EXPECT_EQ(parsed.result->entries(parsed.result->root()).size(), 10'000U);
}

TEST(PickleWriter, WhatCannotBeWrittenIsToldAtTheEnd) {
  const auto refusal = [](auto&& write) {
    PickleWriter writer;
    write(writer);
    writer.none();
    const Result<std::string> bytes = writer.finish();
    if (bytes.has_value()) return "written"s;
    EXPECT_EQ(bytes.error().code, ErrorCode::invalid_argument);
    return bytes.error().detail;
  };
  // Nobody reads what the view only claims to have.
  const std::string_view huge("x", size_t{1} << 32);
  EXPECT_EQ(refusal([&](PickleWriter& writer) { writer.text(huge); }),
            "a text of 4294967296 bytes; protocol 2 has texts of less than 4 GiB");
  EXPECT_EQ(refusal([](PickleWriter& writer) { writer.text("ab\xff"); }), "a text that is not UTF-8 at its byte 2");
  EXPECT_EQ(refusal([](PickleWriter& writer) { writer.global("torch\n", "x"); }),
            "a global with an end of line in its name");
  EXPECT_EQ(refusal([](PickleWriter& writer) { writer.global("torch", "\xed\xa0\x80"); }),
            "a global whose name is not UTF-8");
  const std::string long_integer(256, '\1');
  EXPECT_EQ(refusal([&](PickleWriter& writer) { writer.big_integer(std::as_bytes(std::span(long_integer))); }),
            "an integer of 256 bytes; 255 are the most");
  EXPECT_EQ(refusal([](PickleWriter& writer) { writer.tensor({.storage_key = "0", .storage_bytes = 3}); }),
            "a storage of 3 bytes is no whole number of float32");
  EXPECT_EQ(
      refusal([](PickleWriter& writer) { writer.tensor({.storage_key = "0", .storage_bytes = uint64_t{1} << 63}); }),
      "a storage, or an offset in it, of 2^63 and more");
  EXPECT_EQ(refusal([](PickleWriter& writer) {
              writer.text("\xff");
              writer.global("\n", "");
            }),
            "a text that is not UTF-8 at its byte 0");
}

TEST(PickleWriter, LoneSurrogatesPass) {
  EXPECT_EQ(read_back([](PickleWriter& writer) { writer.text("\xed\xa0\x80"); }), "'\xed\xa0\x80'");
}

}  // namespace
}  // namespace headrace::format
