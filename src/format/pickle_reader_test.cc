// SPDX-License-Identifier: Apache-2.0
// What the pickle reader reads: every opcode, what torch.save wrote, the shape of the program. Refusals have a file of
// their own.
#include <string>

#include <gtest/gtest.h>

#include <headrace/pickle.h>

#include "tests/support/pickle_oracle.h"
#include "tests/support/torch_pickles.h"

namespace headrace {
namespace {

using namespace std::string_literals;
using test::from_hex;
using test::ParsedPickle;

constexpr PickleOptions kCollect = {.unknown_globals = UnknownGlobals::collect};

std::string read(std::string_view bytes) { return ParsedPickle(bytes).text(); }

TEST(PickleReader, EachOpcodeOfAValueGivesIt) {
  EXPECT_EQ(read("N."), "None");
  EXPECT_EQ(read("\x88."), "True");
  EXPECT_EQ(read("\x89."), "False");
  EXPECT_EQ(read("K\xff."), "255");
  EXPECT_EQ(read("M\xff\xff."), "65535");
  EXPECT_EQ(read("J\xff\xff\xff\x7f."), "2147483647");
  EXPECT_EQ(read("J\xfe\xff\xff\xff."), "-2");
  EXPECT_EQ(read("G\x3f\xf8\0\0\0\0\0\0."s), "1.5");
  EXPECT_EQ(read("X\x03\0\0\0a\xc3\xbc."s), "'a\xc3\xbc'");
  EXPECT_EQ(read("X\0\0\0\0."s), "''");
  EXPECT_EQ(read("U\x02\xff\0."s), "b:ff:00");
  EXPECT_EQ(read("]."), "[]");
  EXPECT_EQ(read("}."), "{}");
  EXPECT_EQ(read("\x8f."), "set()");
  EXPECT_EQ(read(")."), "()");
  EXPECT_EQ(read("K\1\x85."), "(1,)");
  EXPECT_EQ(read("K\1K\2\x86."), "(1, 2)");
  EXPECT_EQ(read("K\1K\2K\3\x87."), "(1, 2, 3)");
  EXPECT_EQ(read("(K\1K\2K\3K\4t."), "(1, 2, 3, 4)");
  EXPECT_EQ(read("(t."), "()");
}

TEST(PickleReader, EachOpcodeOfAContainerChangesIt) {
  EXPECT_EQ(read("]K\1a."), "[1]");
  EXPECT_EQ(read("](K\1K\2eK\3a."), "[1, 2, 3]");
  EXPECT_EQ(read("](e."), "[]");
  EXPECT_EQ(read("}K\1Ns."), "{1: None}");
  EXPECT_EQ(read("}(K\1NK\2NuK\1\x88s."), "{1: None, 2: None, 1: True}");
  EXPECT_EQ(read("}(u."), "{}");
}

TEST(PickleReader, EachOpcodeOfAnObjectRecordsIt) {
  EXPECT_EQ(read("ctorch\nfloat32\n."), "torch.float32");
  EXPECT_EQ(read("ctorch\nSize\n)\x85R."), "torch.Size(())");
  EXPECT_EQ(read("ctorch.nn.parameter\nParameter\n)\x81."), "torch.nn.parameter.Parameter.new()");
  EXPECT_EQ(read("ccollections\nOrderedDict\n)R}K\1Nsb."), "collections.OrderedDict()|{1: None}|");
  EXPECT_EQ(read("ccollections\nOrderedDict\n)RK\1Ns."), "collections.OrderedDict(){1: None}");
  EXPECT_EQ(read("ccollections\nCounter\n)R(K\1K\2u."), "collections.Counter(){1: 2}");
  EXPECT_EQ(read("(U\7storagectorch\nFloatStorage\nX\1\0\0\0000U\3cpuK\6tQ."s),
            "storage(b:73:74:6f:72:61:67:65, torch.FloatStorage, '0', b:63:70:75, 6)");
}

TEST(PickleReader, TheMemoGivesTheSameNodeAgain) {
  const ParsedPickle parsed("]q\0]r\1\0\0\0h\0j\1\0\0\0\x86."s);
  EXPECT_EQ(parsed.text(), "([], [])");
  const auto items = parsed.result->tuple_items(parsed.result->root());
  EXPECT_EQ(items[0], 0U);
  EXPECT_EQ(items[1], 1U);
}

TEST(PickleReader, MemoIndicesMayBeOfAnySizeAndOrder) {
  EXPECT_EQ(read("K\1r\xff\xff\xff\xffK\2r\0\0\0\x80K\3q\1K\4q\0(j\xff\xff\xff\xffj\0\0\0\x80h\1h\0t."s),
            "(1, 2, 3, 4)");
  EXPECT_EQ(read("K\1q\1K\2q\0K\3q\1h\1."s), "3");
  EXPECT_EQ(read("K\1q\0K\2q\0h\0."s), "2");
}

TEST(PickleReader, Long1OfAnyLengthIsRead) {
  EXPECT_EQ(read("\x8a\0."s), "0");
  EXPECT_EQ(read("\x8a\1\x80."), "-128");
  EXPECT_EQ(read("\x8a\2\xff\0."s), "255");
  EXPECT_EQ(read("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), "9223372036854775807");
  EXPECT_EQ(read("\x8a\x08\0\0\0\0\0\0\0\x80."s), "-9223372036854775808");
  EXPECT_EQ(read("\x8a\x09\0\0\0\0\0\0\0\x80\0."s), "big:00:00:00:00:00:00:00:80:00");
  EXPECT_EQ(read("\x8a\x0a\1\0\0\0\0\0\0\0\0\0."s), "1");
  EXPECT_EQ(read("\x8a\x0a\xfe\xff\xff\xff\xff\xff\xff\xff\xff\xff."), "-2");
  EXPECT_EQ(read("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff."), "big:ff:ff:ff:ff:ff:ff:ff:7f:ff");
  const ParsedPickle longest("\x8a\xff" + std::string(255, '\x55') + ".");
  EXPECT_EQ(longest.result->bytes(longest.result->root()).size(), 255U);
}

TEST(PickleReader, LoneSurrogatesAreText) { EXPECT_EQ(read("X\3\0\0\0\xed\xa0\x80."s), "'\xed\xa0\x80'"); }

TEST(PickleReader, WhatFollowsStopIsLeftForTheNext) {
  const ParsedPickle parsed("\x80\2K\1.rubbish");
  ASSERT_EQ(parsed.text(), "1");
  EXPECT_EQ(parsed.result->consumed_bytes(), 5U);
  EXPECT_EQ(parsed.result->protocol(), 2);
}

TEST(PickleReader, ItemsLeftOnTheStackAtStopDoNotMatter) { EXPECT_EQ(read("K\1(K\2K\3."), "3"); }

TEST(PickleReader, ProtoMayNameAnyProtocol) { EXPECT_EQ(read("\x80\4N."), "None"); }

TEST(PickleReader, AListMayContainItself) {
  const ParsedPickle parsed("]q\0K\1ah\0a."s);
  ASSERT_TRUE(parsed.result.has_value());
  const PickleNode root = parsed.result->root();
  EXPECT_EQ(parsed.result->appended(root), (std::vector<PickleNode>{1, root}));
}

TEST(PickleReader, NestingOfAnyDepthIsRead) {
  const std::string deep = std::string(200'000, ']') + std::string(199'999, 'a') + ".";
  const ParsedPickle parsed(deep);
  EXPECT_TRUE(parsed.text().starts_with("[[[["));
  EXPECT_EQ(parsed.result->node_count(), 200'000U);
}

TEST(PickleReader, ValuesThatExistOnceAreOneNode) {
  const ParsedPickle parsed("(NN\x88\x88\x89\x89))(t]]t.");
  ASSERT_EQ(parsed.text(), "(None, None, True, True, False, False, (), (), (), [], [])");
  EXPECT_EQ(parsed.result->node_count(), 7U);
}

TEST(PickleReader, StepsComeInTheOrderOfThePickle) {
  const ParsedPickle parsed("]K\1a}K\3Nsa.");
  ASSERT_EQ(parsed.text(), "[1, {3: None}]");
  std::string order;
  for (const PickleStep& step : parsed.result->steps()) {
    const bool create = step.kind == PickleStepKind::create;
    order += create ? "create" : step.kind == PickleStepKind::append ? "append" : "set";
    order += fmt::format(" {}x{}; ", step.first, step.count);
  }
  EXPECT_EQ(order, "create 0x2; append 0x1; create 2x3; set 2x2; append 0x1; ");
}

TEST(PickleReader, OffsetsCountFromTheBase) {
  const ParsedPickle parsed("\x80\2]ctorch\nint8\na.", {.base_offset_bytes = 1000});
  ASSERT_TRUE(parsed.result.has_value());
  EXPECT_EQ(parsed.result->offset_bytes(0), 1002U);
  EXPECT_EQ(parsed.result->globals()[0].offset_bytes, 1003U);
}

TEST(PickleReader, GlobalsAreListedOnceByTheirNameInPython3) {
  const ParsedPickle parsed("(c__builtin__\nset\ncbuiltins\nset\nctorch\nint8\nctorch\nnn.parameter.Parameter\nt.");
  ASSERT_EQ(parsed.text(), "(builtins.set, builtins.set, torch.int8, torch.nn.parameter.Parameter)");
  const auto globals = parsed.result->globals();
  ASSERT_EQ(globals.size(), 3U);
  EXPECT_EQ(globals[0].module(), "builtins");
  EXPECT_EQ(globals[0].name(), "set");
  EXPECT_EQ(globals[0].offset_bytes, 1U);
  EXPECT_TRUE(globals[2].known());
  EXPECT_EQ(globals[2].role, PickleRole::parameter);
}

TEST(PickleReader, CollectRecordsUnknownGlobalsAndWhatIsMadeOfThem) {
  const ParsedPickle parsed("c__main__\nModel\n)\x81}K\1NsbK\2aK\3K\4scos\nsystem\nX\2\0\0\0ls\x85Ra."s, kCollect);
  ASSERT_EQ(parsed.text(), "__main__.Model.new()[2, os.system('ls')]{3: 4}|{1: None}|");
  EXPECT_FALSE(parsed.result->globals()[0].known());
  EXPECT_EQ(parsed.result->globals()[0].role, PickleRole::unknown);
  EXPECT_EQ(parsed.result->globals()[1].role, PickleRole::never);
}

TEST(PickleReader, CollectReadsKnownPicklesInTheSameWay) {
  for (const std::string_view hex : {test::kTorchParameter, test::kTorchStateDict, test::kTorchNested})
    EXPECT_EQ(ParsedPickle(from_hex(hex), kCollect).text(), ParsedPickle(from_hex(hex)).text());
}

TEST(PickleReader, ATensorOfTorchIsRead) {
  EXPECT_EQ(read(from_hex(test::kTorchTensor)),
            "torch._utils._rebuild_tensor_v2(storage('storage', torch.FloatStorage, '0', 'cpu', 6), 0, (2, 3), (3, 1), "
            "False, collections.OrderedDict())");
  EXPECT_EQ(
      read(from_hex(test::kTorchUint16)),
      "torch._utils._rebuild_tensor_v3(storage('storage', torch.storage.UntypedStorage, '0', 'cpu', 8), 0, (2, 2), "
      "(2, 1), False, collections.OrderedDict(), torch.uint16)");
  EXPECT_EQ(
      read(from_hex(test::kTorchParameter)),
      "torch._utils._rebuild_parameter(torch._utils._rebuild_tensor_v2(storage('storage', torch.FloatStorage, '0', "
      "'cpu', 6), 0, (2, 3), (3, 1), False, collections.OrderedDict()), True, collections.OrderedDict())");
}

// docs/formats/pickle.md says so of its example.
TEST(PickleReader, ATensorIsOneStepOf21Nodes) {
  const ParsedPickle parsed(from_hex(test::kTorchTensor));
  ASSERT_EQ(parsed.result->steps().size(), 1U);
  EXPECT_EQ(parsed.result->node_count(), 21U);
}

TEST(PickleReader, PythonsOwnValuesFromTorchAreRead) {
  EXPECT_EQ(read(from_hex(test::kTorchNested)),
            "{'a': [1, -2, 3.5, None, True, False, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ()], "
            "'b': {'c': collections.OrderedDict(){'x': {}, 'y': []}}, 70000: '\u00fc\u20ac\U0001f600'}");
  EXPECT_EQ(
      ParsedPickle(from_hex(test::kTorchPython), kCollect).text(),
      "[builtins.bytes(), _codecs.encode('a\u00ff', 'latin1'), builtins.set([1]), builtins.complex(0, 1), "
      "big:00:00:00:00:00:00:00:00:40, -1099511627776, 2147483648, -2147483648, "
      "builtins.bytearray(_codecs.encode('x', 'latin1')), torch.device('cpu'), torch.float32, torch.Size((1, 2)), "
      "collections.Counter({'a': 2, 'b': 1})]");
}

TEST(PickleReader, AStateDictKeepsItsMetadata) {
  const ParsedPickle parsed(from_hex(test::kTorchStateDict));
  ASSERT_TRUE(parsed.result.has_value());
  const Pickle& pickle = *parsed.result;
  ASSERT_EQ(pickle.role(pickle.root()), PickleRole::ordered_dict);
  std::string keys;
  for (const PickleEntry& entry : pickle.entries(pickle.root())) {
    keys += std::string(*pickle.text(entry.key)) + " ";
    EXPECT_EQ(pickle.role(entry.value), PickleRole::tensor_function);
  }
  EXPECT_EQ(keys, "0.weight 0.bias 1.weight 1.bias 1.running_mean 1.running_var 1.num_batches_tracked ");
  ASSERT_EQ(pickle.states(pickle.root()).size(), 1U);
  const auto state = pickle.entries(pickle.states(pickle.root())[0]);
  ASSERT_EQ(state.size(), 1U);
  EXPECT_EQ(pickle.text(state[0].key), "_metadata");
}

TEST(PickleReader, StoragesTellTheirParts) {
  const ParsedPickle parsed(from_hex(test::kTorchTensor));
  ASSERT_TRUE(parsed.result.has_value());
  const Pickle& pickle = *parsed.result;
  const PickleNode node = pickle.tuple_items(pickle.call(pickle.root())->arguments)[0];
  const auto storage = pickle.storage(node);
  ASSERT_TRUE(storage.has_value());
  EXPECT_EQ(storage->key, "0");
  EXPECT_EQ(storage->location, "cpu");
  EXPECT_EQ(storage->numel, 6U);
  EXPECT_FALSE(storage->view.has_value());
  EXPECT_EQ(pickle.globals()[*pickle.global(storage->type)].name(), "FloatStorage");
}

TEST(PickleReader, ThePicklesOfALegacyFileFollowEachOther) {
  const std::string file = from_hex(test::kTorchLegacy);
  std::string_view rest = file;
  std::string all;
  for (int i = 0; i < 5; ++i) {
    const ParsedPickle parsed(rest);
    all += parsed.text() + "\n";
    ASSERT_TRUE(parsed.result.has_value()) << all;
    rest.remove_prefix(parsed.result->consumed_bytes());
  }
  EXPECT_EQ(all,
            "big:6c:fc:9c:46:f9:20:6a:a8:50:19\n1001\n"
            "{'protocol_version': 1001, 'little_endian': True, 'type_sizes': {'short': 2, 'int': 4, 'long': 4}}\n"
            "{'a': torch._utils._rebuild_tensor_v2(storage('storage', torch.FloatStorage, '94697790443936', 'cpu', 2, "
            "None), 0, (2,), (1,), False, collections.OrderedDict())}\n['94697790443936']\n");
  EXPECT_EQ(rest.size(), 16U);
}

TEST(PickleReader, AccessorsGiveNothingForOtherKinds) {
  const ParsedPickle parsed("]K\1a.");
  const Pickle& pickle = *parsed.result;
  EXPECT_FALSE(pickle.boolean(0) || pickle.integer(0) || pickle.real(0) || pickle.text(0) || pickle.global(0));
  EXPECT_FALSE(pickle.call(0) || pickle.storage(0));
  EXPECT_TRUE(pickle.bytes(0).empty() && pickle.tuple_items(0).empty());
  EXPECT_TRUE(pickle.entries(0).empty() && pickle.states(0).empty() && pickle.appended(1).empty());
  EXPECT_EQ(pickle.role(0), PickleRole::unknown);
}

}  // namespace
}  // namespace headrace
