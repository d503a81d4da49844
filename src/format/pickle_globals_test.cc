// SPDX-License-Identifier: Apache-2.0
// The table of globals: roles, and Python 2's names.
#include "format/pickle_globals.h"

#include <gtest/gtest.h>

#include <headrace/tensor.h>

namespace headrace::format {
namespace {

PickleRole role(std::string_view module, std::string_view name) {
  return global_role(module, std::string(module) + "." + std::string(name));
}

TEST(PickleGlobals, EachNameHasItsRole) {
  EXPECT_EQ(role("collections", "OrderedDict"), PickleRole::ordered_dict);
  EXPECT_EQ(role("collections", "Counter"), PickleRole::counter);
  EXPECT_EQ(role("_codecs", "encode"), PickleRole::function);
  EXPECT_EQ(role("torch.serialization", "_get_layout"), PickleRole::function);
  EXPECT_EQ(role("torch.nn.parameter", "Parameter"), PickleRole::parameter);
  EXPECT_EQ(role("torch", "Tensor"), PickleRole::tensor_class);
  EXPECT_EQ(role("torch", "Size"), PickleRole::plain_class);
  EXPECT_EQ(role("torch._tensor", "_rebuild_from_type_v2"), PickleRole::tensor_function);
  EXPECT_EQ(role("torch._utils", "_rebuild_tensor_v3"), PickleRole::tensor_function);
  EXPECT_EQ(role("torch", "per_channel_affine"), PickleRole::constant);
  EXPECT_EQ(role("torch", "int3"), PickleRole::constant);
  EXPECT_EQ(role("torch", "BFloat16Storage"), PickleRole::storage_class);
  EXPECT_EQ(role("torch.cuda", "HalfStorage"), PickleRole::storage_class);
  EXPECT_EQ(role("torch.storage", "UntypedStorage"), PickleRole::untyped_storage);
  EXPECT_EQ(role("torch.cuda.sparse", "FloatTensor"), PickleRole::tensor_class);
}

TEST(PickleGlobals, NamesThatOnlyLookRightAreUnknown) {
  for (const auto& [module, name] : {std::pair("torch", "load"),
                                     {"torch", "Storage"},
                                     {"torch", "float99"},
                                     {"torch", "ComplexFloatTensor"},
                                     {"torch.cuda", "QInt8Storage"},
                                     {"torch.sparse", "BoolTensor"},
                                     {"torch.sparse", "FloatStorage"},
                                     {"torch._utils", "_rebuild_"},
                                     {"torch._utils", "_import_dotted_name"},
                                     {"torch.storage", "_load_from_bytes"},
                                     {"collections", "OrderedDict.fromkeys"},
                                     {"builtins", "eval"},
                                     {"", ""}})
    EXPECT_EQ(role(module, name), PickleRole::unknown) << module << " " << name;
}

TEST(PickleGlobals, FourModulesAreNeverAdmitted) {
  for (const char* module : {"sys", "os", "posix", "nt"})
    EXPECT_EQ(role(module, "system"), PickleRole::never);
  EXPECT_EQ(role("os.path", "join"), PickleRole::unknown);
}

TEST(PickleGlobals, EveryElementTypeAndStorageClassOfTorchIsKnown) {
  for (uint32_t i = 0; i < kDTypeCount; ++i) {
    const DTypeFacts& facts = dtype_facts(static_cast<DType>(i));
    if (facts.torch_bytes == 0) continue;
    EXPECT_EQ(role("torch", facts.name), PickleRole::constant) << facts.name;
    if (facts.torch_storage.empty()) continue;
    EXPECT_EQ(role("torch", facts.torch_storage), PickleRole::storage_class) << facts.name;
  }
}

TEST(PickleGlobals, NamesOfPython2BecomeThoseOfPython3) {
  const auto check = [](GlobalName written, std::string_view module, std::string_view name) {
    const GlobalName meant = python3_name(written);
    EXPECT_EQ(meant.module, module);
    EXPECT_EQ(meant.name, name);
  };
  check({"__builtin__", "set"}, "builtins", "set");
  check({"__builtin__", "long"}, "builtins", "int");
  check({"__builtin__", "intern"}, "sys", "intern");
  check({"copy_reg", "_reconstructor"}, "copyreg", "_reconstructor");
  check({"itertools", "izip"}, "builtins", "zip");
  check({"itertools", "chain"}, "itertools", "chain");
  check({"torch", "Size"}, "torch", "Size");
}

}  // namespace
}  // namespace headrace::format
