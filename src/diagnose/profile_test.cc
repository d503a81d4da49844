// SPDX-License-Identifier: Apache-2.0
// Profiles: what is taken from them, and what is wrong with those that are none.
#include <headrace/profile.h>

#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/files.h"

namespace headrace {
namespace {

using nlohmann::json;
using test::TestFolder;

json good() {
  const json handle = {
      {"engine", "posix"}, {"workers", 2}, {"block_bytes", 1 << 20}, {"queue_depth", 16}, {"registered", "never"}};
  return {{"schema", "headrace.tune"},
          {"version", 1},
          {"read", {{"handle", handle}}},
          {"write", nullptr},
          {"both", nullptr}};
}

Result<HandleOptions> read(const std::string& text, ProfileUse use = ProfileUse::read) {
  const TestFolder folder;
  const std::string path = folder.path() + "/profile.json";
  std::ofstream(path) << text;
  return read_profile(path, use);
}

TEST(Profile, SettingsOfTheHandleAreTaken) {
  const Result<HandleOptions> options = read(good().dump());
  ASSERT_TRUE(options) << options.error().message();
  EXPECT_EQ(options->engine, EngineKind::posix);
  EXPECT_EQ(options->workers, 2U);
  EXPECT_EQ(options->block_bytes, uint64_t{1} << 20);
  EXPECT_EQ(options->queue_depth, 16U);
  EXPECT_EQ(options->registered, Ladder::never);
}

TEST(Profile, ADirectionThatWasNotTunedIsToldWithThoseThatWere) {
  const Result<HandleOptions> options = read(good().dump(), ProfileUse::both);
  ASSERT_FALSE(options);
  EXPECT_EQ(options.error().code, ErrorCode::unavailable);
  EXPECT_NE(options.error().detail.find("\"read\""), std::string::npos);
}

TEST(Profile, WhatAnInterruptedRunPrintedIsNotTaken) {
  json document = good();
  document["interrupted"] = false;
  EXPECT_TRUE(read(document.dump()));
  document["interrupted"] = true;
  const Result<HandleOptions> options = read(document.dump());
  ASSERT_FALSE(options);
  EXPECT_EQ(options.error().code, ErrorCode::unavailable);
}

TEST(Profile, AFileOfAHundredThousandBracketsIsRefused) {
  constexpr size_t kLevels = 100'000;
  const std::string deep = std::string(kLevels, '[') + std::string(kLevels, ']');
  for (const std::string key : {"schema", "version", "read"}) {
    const std::string rest = key == "schema" ? "" : R"("schema": "headrace.tune", )";
    const Result<HandleOptions> options = read("{" + rest + "\"" + key + "\": " + deep + "}");
    ASSERT_FALSE(options);
    EXPECT_EQ(options.error().code, ErrorCode::corrupt);
    EXPECT_NE(options.error().detail.find("deeper than 64"), std::string::npos) << options.error().detail;
  }
}

TEST(Profile, AFileThatIsNotThereIsTheSystemsError) {
  const Result<HandleOptions> options = read_profile("/nowhere/profile.json");
  ASSERT_FALSE(options);
  EXPECT_EQ(options.error().code, ErrorCode::system);
}

TEST(Profile, WhateverIsWrongIsToldByName) {
  const auto message = [](auto change) {
    json document = good();
    change(document);
    const Result<HandleOptions> options = read(document.dump());
    if (options) return std::string("it was taken");
    EXPECT_EQ(options.error().code, ErrorCode::corrupt);
    return options.error().detail;
  };
  const auto handle = [](json& document) -> json& { return document["read"]["handle"]; };
  EXPECT_NE(message([](json& d) { d["schema"] = "headrace.report"; }).find("schema"), std::string::npos);
  EXPECT_NE(message([](json& d) { d["version"] = 2; }).find("version is 2"), std::string::npos);
  EXPECT_NE(message([](json& d) { d["version"] = "1"; }).find("version"), std::string::npos);
  EXPECT_NE(message([](json& d) { d["read"] = 7; }).find("handle"), std::string::npos);
  EXPECT_NE(message([&](json& d) { handle(d)["depth"] = 7; }).find("depth"), std::string::npos);
  EXPECT_NE(message([&](json& d) { handle(d).erase("workers"); }).find("workers"), std::string::npos);
  EXPECT_NE(message([&](json& d) { handle(d)["workers"] = "2"; }).find("workers"), std::string::npos);
  EXPECT_NE(message([&](json& d) { handle(d)["workers"] = -1; }).find("workers"), std::string::npos);
  EXPECT_NE(message([&](json& d) { handle(d)["workers"] = true; }).find("workers"), std::string::npos);
  EXPECT_NE(message([&](json& d) { handle(d)["block_bytes"] = 5000; }).find("block_bytes"), std::string::npos);
  EXPECT_NE(message([&](json& d) { handle(d)["queue_depth"] = 1e9; }).find("queue_depth"), std::string::npos);
  EXPECT_NE(message([&](json& d) { handle(d)["engine"] = "uringg"; }).find("uringg"), std::string::npos);
  EXPECT_NE(message([&](json& d) { handle(d)["registered"] = false; }).find("registered"), std::string::npos);
}

TEST(Profile, WhatIsNoJsonObjectIsRefused) {
  for (const char* const text : {"", "{", "[]", "7", "null", "\xff\xfe", "{\"schema\":\"headrace.tune\"}"}) {
    const Result<HandleOptions> options = read(text);
    ASSERT_FALSE(options) << text;
    EXPECT_EQ(options.error().code, ErrorCode::corrupt) << text;
  }
}

}  // namespace
}  // namespace headrace
