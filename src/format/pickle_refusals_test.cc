// SPDX-License-Identifier: Apache-2.0
// What the pickle reader refuses, each rule by its message and offset; and hostile input.
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <headrace/pickle.h>

#include "format/pickle_opcodes.h"
#include "tests/support/pickle_oracle.h"
#include "tests/support/torch_pickles.h"

namespace headrace {
namespace {

using namespace std::string_literals;
using test::from_hex;
using test::ParsedPickle;

// The offset stands in front, and the message has to contain `rule`.
void expect_refused(std::string_view bytes, uint64_t offset, std::string_view rule, const PickleOptions& options = {}) {
  const ParsedPickle parsed(bytes, options);
  ASSERT_FALSE(parsed.result.has_value()) << rule;
  EXPECT_EQ(parsed.result.error().code, ErrorCode::corrupt);
  EXPECT_EQ(parsed.result.error().offset_bytes, offset) << parsed.result.error().detail;
  EXPECT_TRUE(parsed.result.error().detail.contains(rule)) << parsed.result.error().detail;
}

TEST(PickleRefusals, EveryTruncationOfAPickleIsToldAsOne) {
  const std::string whole = from_hex(test::kTorchParameter);
  for (size_t length = 0; length < whole.size(); ++length) {
    const ParsedPickle parsed(std::string_view(whole).substr(0, length));
    ASSERT_FALSE(parsed.result.has_value());
    EXPECT_TRUE(parsed.result.error().detail.contains("incomplete or damaged")) << parsed.result.error().detail;
  }
}

TEST(PickleRefusals, MissingStop) { expect_refused("\x80\2N", 3, "the pickle ends without STOP"); }

TEST(PickleRefusals, AnOperandThatIsCutOff) {
  expect_refused("NM\1", 1, "BININT2: 1 bytes follow where 2 are needed");
  expect_refused("X\5\0\0\0abcd"s, 0, "BINUNICODE: 4 bytes follow where 5 are needed");
  expect_refused("X\xff\xff\xff\xff", 0, "BINUNICODE: 0 bytes follow where 4294967295 are needed");
  expect_refused("\x8a\5abc.", 0, "LONG1");
  expect_refused("U\5abc.", 0, "SHORT_BINSTRING");
  expect_refused("ctorch\nSize", 0, "GLOBAL: a name without its end of line");
}

TEST(PickleRefusals, StackUnderflow) {
  const std::vector<std::string> pickles = {".",  "\x85", "N\x86", "NN\x87", "Na",    "NNs",
                                            "Q.", "NR",   "N\x81", "Nb",     "q\0."s, "r\0\0\0\0."s};
  for (const std::string& bytes : pickles)
    expect_refused(bytes, bytes.find_first_not_of('N'), "on the stack");
}

TEST(PickleRefusals, ItemsBelowTheMarkAreOutOfReach) {
  expect_refused("]N(a.", 3, "APPEND: needs 2 on the stack above the mark, which has 0");
  expect_refused("N(.", 2, "STOP: needs 1");
  expect_refused("N(q\0t."s, 2, "BINPUT: needs 1");
}

TEST(PickleRefusals, MissingMark) {
  for (const std::string_view bytes : {"]Ne.", "}NNu.", "]Nt."})
    expect_refused(bytes, bytes.size() - 2, "without a MARK");
  expect_refused("(e.", 1, "APPENDS: there is nothing below the mark");
  expect_refused("(u.", 1, "SETITEMS: there is no dict below the mark");
}

TEST(PickleRefusals, OddSetitems) {
  expect_refused("}(NNNu.", 5, "SETITEMS: keys and values come in pairs, but there are 3");
}

TEST(PickleRefusals, AKeyThatPythonCannotHash) {
  expect_refused("}]Ns.", 3, "a list cannot be a key");
  expect_refused("}(N}}Nu.", 6, "a dict cannot be a key");
  expect_refused("}(NN\x8fNu.", 6, "a set cannot be a key");
}

TEST(PickleRefusals, AKeyThatTakesPythonForEverToHash) {
  std::string doubled = "}K\1\x85q\0"s;  // each tuple holds the one before twice
  for (char i = 0; i < 40; ++i)
    doubled += "h"s + i + "\x86q"s + static_cast<char>(i + 1);
  expect_refused(doubled + "Ns.", doubled.size() + 1, "a key is a tuple of more than 4096 items");
  const std::string deep = "})" + std::string(1'000'000, '\x85');
  expect_refused(deep + "Ns.", deep.size() + 1, "nested more than 100 deep");
  const std::string list = "cbuiltins\nset\n]" + doubled.substr(1) + "a\x85";
  expect_refused(list + "R.", list.size(), "REDUCE: a key is a tuple");
  const std::string pairs = "ccollections\nOrderedDict\n]]" + doubled.substr(1) + "aNaa\x85";
  expect_refused(pairs + "R.", pairs.size(), "REDUCE: a key is a tuple");
  const ParsedPickle ordinary("}K\1X\1\0\0\0a\x86K\1\x86Ns."s);
  EXPECT_TRUE(ordinary.result.has_value());
}

TEST(PickleRefusals, TheIdOfAModuleIsItsClassAndOnlyWhereUnknownNamesAreCollected) {
  const std::string id = "(X\6\0\0\0modulecmine\nNet\nNNtQ."s;
  const ParsedPickle collected(id, {.unknown_globals = UnknownGlobals::collect});
  ASSERT_TRUE(collected.result.has_value());
  EXPECT_EQ(collected.result->kind(collected.result->root()), PickleKind::global);
  expect_refused("(X\6\0\0\0modulectorch\nSize\nNNtQ."s, 27, "does not begin with \"storage\"");
}

TEST(PickleRefusals, CallsThatTakeManyTimesTheMemoryOfTheFile) {
  expect_refused("cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R."s, 26, "a bytearray is made of text, not of an int");
  std::string copies = "cbuiltins\nset\nq"s + '\0' + "](" + std::string(10'000, 'N') + "e\x85q\1"s + "R";
  for (int i = 0; i < 10'000; ++i)
    copies += "h\0h\1R"s;
  const ParsedPickle parsed(copies + ".");
  ASSERT_FALSE(parsed.result.has_value());
  EXPECT_TRUE(parsed.result.error().detail.contains("copy many times more")) << parsed.result.error().detail;
}

TEST(PickleRefusals, MemoMiss) {
  expect_refused("Nq\0h\1."s, 3, "BINGET: nothing was put into the memo at 1");
  expect_refused("j\xff\xff\xff\xff.", 0, "LONG_BINGET: nothing was put into the memo at 4294967295");
}

TEST(PickleRefusals, AnyOtherOpcodeIsNamed) {
  const std::string_view read = "(.JKMNQRUXabc}ehj]qrst)uG\x80\x81\x85\x86\x87\x88\x89\x8a\x8f";
  uint32_t refused = 0;
  for (uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<char>(code);
    if (read.contains(byte)) continue;
    const format::OpcodeFacts facts = format::opcode_facts(static_cast<uint8_t>(code));
    if (facts.name == "?") {
      expect_refused("N"s + byte, 1, fmt::format("byte 0x{:02x} is no opcode", code));
    } else {
      expect_refused("N"s + byte, 1, fmt::format("opcode {} ", facts.name));
      ++refused;
    }
  }
  EXPECT_EQ(refused, 68U - read.size());
  expect_refused("\x80\4\x95", 2,
                 "opcode FRAME (0x95, protocol 4) is not read: torch's weights_only accepts protocol 2 only");
}

TEST(PickleRefusals, TextThatIsNotUtf8) {
  expect_refused("X\3\0\0\0ab\xff."s, 0, "BINUNICODE: the text is not UTF-8 at its byte 2");
  expect_refused("ctor\xff\nSize\n.", 0, "GLOBAL: the name is not UTF-8");
}

TEST(PickleRefusals, GlobalsOutsideTheTable) {
  expect_refused("\x80\2c__main__\nModel\n.", 2, "GLOBAL: __main__.Model is not among the names");
  expect_refused("cbuiltins\neval\n.", 0, "builtins.eval is not among");
  expect_refused("cos\nsystem\n.", 0, "os.system is in a module that is never admitted");
  for (const char* module : {"sys", "posix", "nt"})
    expect_refused(fmt::format("c{}\nx\n.", module), 0, "never admitted");
  expect_refused("c__builtin__\nintern\n.", 0, "sys.intern is in a module that is never admitted");
}

TEST(PickleRefusals, NamesAreToldInPlainText) {
  expect_refused("c\x1b[2J\nx\n.", 0, "\\x1b[2J.x is not");
  expect_refused("c" + std::string(10'000, 'm') + "\nx\n.", 0, "mmm... is not");
}

TEST(PickleRefusals, OffsetsCountFromTheBase) { expect_refused("N0", 1001, "POP", {.base_offset_bytes = 1000}); }

TEST(PickleRefusals, AppendToAnythingButAList) {
  expect_refused("}Na.", 2, "APPEND: only a list can be appended to, not a dict");
  expect_refused("ccollections\nOrderedDict\n)R(Ne.", 29, "not what collections.OrderedDict gave");
}

TEST(PickleRefusals, SettingItemsOfAnythingButADict) {
  expect_refused("]NNs.", 3, "SETITEM: only dict, OrderedDict and Counter have items to set, not a list");
  expect_refused("ctorch\nSize\n)\x85RNNs.", 17, "not what torch.Size gave");
  expect_refused("ccollections\nOrderedDict\nNNs.", 27, "not collections.OrderedDict");
}

TEST(PickleRefusals, CallingWhatIsNoFunction) {
  expect_refused("])R.", 2, "REDUCE: a list cannot be called");
  expect_refused("ctorch\nfloat32\n)R.", 16, "torch.float32 is no function or class");
  expect_refused("ctorch\nFloatStorage\n)R.", 21, "torch.FloatStorage is no function");
  expect_refused("ctorch\nSize\n]R.", 13, "the arguments are a list rather than a tuple");
  expect_refused("ctorch\nSize\n)R)R.", 15, "what torch.Size gave cannot be called");
}

TEST(PickleRefusals, InstancesOfWhatIsNoClass) {
  expect_refused("c_codecs\nencode\n)\x81.", 17, "NEWOBJ: _codecs.encode is no class");
  expect_refused("ctorch._utils\n_rebuild_tensor\n)\x81.", 31, "no class");
  expect_refused("ctorch\nint8\n)\x81.", 13, "no class");
  expect_refused("])\x81.", 2, "a list is no class");
  expect_refused("ctorch\nSize\nN\x81.", 13, "the arguments are None");
}

TEST(PickleRefusals, StateForWhatHasNone) {
  for (const auto& [bytes, offset, name] : {std::tuple("]}b.", 2, "a list"),
                                            {"}}b.", 2, "a dict"},
                                            {"ctorch\nTensor\n}b.", 15, "torch.Tensor"},
                                            {"ctorch\nSize\n)R}b.", 15, "what torch.Size gave"},
                                            {"c_codecs\nencode\n)R}b.", 19, "what _codecs.encode gave"}})
    expect_refused(bytes, static_cast<uint64_t>(offset),
                   fmt::format("BUILD: only tensors, parameters, OrderedDict and Counter have a state, not {}", name));
  expect_refused("ccollections\nOrderedDict\n)R]b.", 28,
                 "the state of collections.OrderedDict is a list rather than a dict");
}

TEST(PickleRefusals, PersistentIdsThatAreNoStorage) {
  const std::string type = "ctorch\nFloatStorage\n";
  expect_refused("K\1Q.", 2, "BINPERSID: the persistent id is an int rather than a tuple");
  expect_refused("X\1\0\0\0000Q."s, 6, "is a text rather than a tuple");
  expect_refused(")Q.", 1, "does not begin with \"storage\"");
  expect_refused("U\6moduleNNN(tQ.", 13, "does not begin");
  expect_refused("(U\6moduleNNNtQ.", 13, "does not begin with \"storage\"");
  expect_refused("U\7storage\x85Q.", 10, "has 5 or 6 items, not 1");
  expect_refused(
      "(U\7storageNU\1"
      "0U\3cpuK\1tQ.",
      22, "None is no class of storages");
  expect_refused(
      "(U\7storagectorch\nint8\nU\1"
      "0U\3cpuK\1tQ.",
      33, "torch.int8 is no class of storages");
  expect_refused("(U\7storage" + type + "NU\3cpuK\1tQ.", 39, "key and location have to be text");
  expect_refused("(U\7storage" + type +
                     "U\1"
                     "0NK\1tQ.",
                 37, "key and location have to be text");
  expect_refused("(U\7storage" + type +
                     "U\1"
                     "0U\3cpu\x88tQ.",
                 40, "number of elements has to be an int");
  expect_refused("(U\7storage" + type +
                     "U\1"
                     "0U\3cpuJ\xff\xff\xff\xfftQ.",
                 44, "of 0 or more");
  expect_refused("(U\7storage" + type +
                     "U\1"
                     "0U\3cpuK\1K\1tQ.",
                 43, "view has to be None or a tuple");
}

TEST(PickleRefusals, CollectStillChecksEverythingElse) {
  const PickleOptions collect = {.unknown_globals = UnknownGlobals::collect};
  expect_refused("}Na.", 2, "only a list", collect);
  expect_refused("ctorch\nint8\n)R.", 13, "no function", collect);
  expect_refused("c__main__\nf\nNR.", 13, "rather than a tuple", collect);
  expect_refused("c__main__\nd\n(Nu.", 14, "come in pairs", collect);
}

TEST(PickleRefusals, DistinctGlobalsAreLimited) {
  std::string many;
  for (uint32_t i = 0; i < 65'537; ++i)
    many += fmt::format("cm\n{}\n", i);
  expect_refused(many + ".", many.size() - 9, "more than 65536 different names",
                 {.unknown_globals = UnknownGlobals::collect});
}

}  // namespace
}  // namespace headrace
