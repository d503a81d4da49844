// SPDX-License-Identifier: Apache-2.0
// Reads what tune_json.cc writes, and trusts nothing in it: the file may have been edited by hand.
// Any thread.
// Owns nothing.
#include <headrace/profile.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "os/small_file.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kProfileBytesMax = uint64_t{64} << 20;
constexpr int kDepthMax = 64;
constexpr const char* kOperation = "read_profile";

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Result<HandleOptions> read(ProfileUse use) const {
    const Result<std::vector<std::byte>> text = os::read_small_file(path_, kProfileBytesMax);
    if (!text) return std::unexpected(text.error());
    const auto* const begin = reinterpret_cast<const char*>(text->data());
    // Values are copied and printed by functions that call themselves once for each level.
    bool too_deep = false;
    const Json document = Json::parse(
        begin, begin + text->size(),
        [&](int depth, Json::parse_event_t, Json&) {
          if (depth > kDepthMax) too_deep = true;
          return !too_deep;
        },
        false);
    if (too_deep) return wrong(fmt::format("it is nested deeper than {} levels", kDepthMax));
    if (document.is_discarded() || !document.is_object()) return wrong("it is no JSON object");
    if (document.value("schema", Json()) != "headrace.tune")
      return wrong("its \"schema\" is not \"headrace.tune\"; name a file that headrace tune --output wrote");
    if (document.value("version", Json()) != 1)
      return wrong(
          fmt::format("its version is {}, and this headrace knows 1", shown(document.value("version", Json()))));
    if (document.value("interrupted", Json()) == true)
      return std::unexpected(Error{.code = ErrorCode::unavailable,
                                   .operation = kOperation,
                                   .path = path_,
                                   .detail = "the run that wrote it was interrupted, so that its settings are "
                                             "unconfirmed; let headrace tune run to its end"});
    const std::string_view name = name_of(use);
    const Json best = document.value(std::string(name), Json());
    if (best.is_null()) return std::unexpected(not_tuned(document, name));
    if (!best.is_object() || !best.contains("handle") || !best.at("handle").is_object())
      return wrong(fmt::format("\"{}\" has no object \"handle\"", name));
    return options_of(best.at("handle"), name);
  }

 private:
  static std::string_view name_of(ProfileUse use) {
    switch (use) {
      case ProfileUse::read: return "read";
      case ProfileUse::write: return "write";
      case ProfileUse::both: return "both";
    }
    return "";
  }

  static std::string shown(const Json& value) {
    constexpr size_t kShownMax = 60;
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > kShownMax) text.replace(kShownMax, std::string::npos, "...");
    return text;
  }

  [[nodiscard]] std::unexpected<Error> wrong(std::string detail) const {
    return std::unexpected(
        Error{.code = ErrorCode::corrupt, .operation = kOperation, .path = path_, .detail = std::move(detail)});
  }

  [[nodiscard]] Error not_tuned(const Json& document, std::string_view name) const {
    std::string there;
    for (const char* const other : {"read", "write", "both"})
      if (document.value(other, Json()).is_object())
        there += fmt::format("{}\"{}\"", there.empty() ? "" : " and ", other);
    return {.code = ErrorCode::unavailable,
            .operation = kOperation,
            .path = path_,
            .detail = fmt::format("it has no settings for \"{}\", which was not tuned; it has those for {}", name,
                                  there.empty() ? "nothing" : there)};
  }

  [[nodiscard]] Result<uint64_t> number(const Json& handle, const char* key, uint64_t least, uint64_t most,
                                        uint64_t unit) const {
    const Json& value = handle.at(key);
    if (value.is_number_unsigned()) {
      const auto number = value.get<uint64_t>();
      if (number >= least && number <= most && number % unit == 0) return number;
    }
    return wrong(fmt::format("\"{}\" is {}; allowed: a whole number from {} to {}{}", key, shown(value), least, most,
                             unit == 1 ? "" : fmt::format(", a multiple of {}", unit)));
  }

  [[nodiscard]] Result<HandleOptions> options_of(const Json& handle, std::string_view name) const {
    static constexpr std::array<std::string_view, 5> kKeys = {"engine", "workers", "block_bytes", "queue_depth",
                                                              "registered"};
    for (const auto& [key, value] : handle.items()) {
      if (std::ranges::find(kKeys, key) == kKeys.end())
        return wrong(
            fmt::format("\"{}\".\"handle\" has the key {}, which is none of engine, workers, block_bytes, "
                        "queue_depth, registered",
                        name, shown(key)));
    }
    for (const std::string_view key : kKeys)
      if (!handle.contains(key)) return wrong(fmt::format("\"{}\".\"handle\" lacks \"{}\"", name, key));
    HandleOptions options;
    const Json& engine = handle.at("engine");
    const auto kind = engine.is_string() ? engine_from_name(engine.get<std::string>()) : std::nullopt;
    if (!kind) return wrong(fmt::format("\"engine\" is {}; allowed: auto, uring, aio, posix, null", shown(engine)));
    options.engine = *kind;
    const Json& registered = handle.at("registered");
    if (registered == "auto") {
      options.registered = Ladder::automatic;
    } else if (registered == "never") {
      options.registered = Ladder::never;
    } else if (registered == "required") {
      options.registered = Ladder::required;
    } else {
      return wrong(fmt::format("\"registered\" is {}; allowed: auto, never, required", shown(registered)));
    }
    const Result<uint64_t> workers = number(handle, "workers", 1, kWorkersMax, 1);
    if (!workers) return std::unexpected(workers.error());
    const Result<uint64_t> block = number(handle, "block_bytes", kBlockBytesMin, kBlockBytesMax, kBlockBytesMin);
    if (!block) return std::unexpected(block.error());
    const Result<uint64_t> depth = number(handle, "queue_depth", 1, kQueueDepthMax, 1);
    if (!depth) return std::unexpected(depth.error());
    options.workers = static_cast<uint32_t>(*workers);
    options.block_bytes = *block;
    options.queue_depth = static_cast<uint32_t>(*depth);
    return options;
  }

  const std::string& path_;
};

}  // namespace

Result<HandleOptions> read_profile(const std::string& path, ProfileUse use) { return Reader(path).read(use); }

}  // namespace headrace
