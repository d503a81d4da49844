// SPDX-License-Identifier: Apache-2.0
// `headrace convert IN OUT`: a checkpoint in another format, type, cut or part.
// One thread.
// Owns its options and the compiled patterns.
#include <headrace/convert.h>

#include <fnmatch.h>
#include <regex.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "command.h"
#include "progress_bar.h"
#include "units.h"

namespace headrace::cli {
namespace {

struct Options {
  std::string source;
  std::string target;
  std::string format;
  std::string dtype;
  std::vector<std::string> select;
  std::vector<std::string> exclude;
  std::vector<std::string> rename;
  uint64_t shard_bytes = 0;
  bool tensors_only = false;
  bool overwrite = false;
  bool no_verify = false;
  OutputForm form = OutputForm::text;
};

// One --rename: the first match of a POSIX extended regular expression is replaced; \1 to \9 are its groups.
class Renaming {
 public:
  // Nothing, and why, where the text is no such thing.
  static std::unique_ptr<Renaming> parse(const std::string& text, std::string& why) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      why = fmt::format("--rename: '{}' is not of the form REGEX=REPLACEMENT", text);
      return nullptr;
    }
    auto renaming = std::make_unique<Renaming>();
    renaming->replacement_ = text.substr(equals + 1);
    const std::string expression = text.substr(0, equals);
    const int error = ::regcomp(&renaming->expression_, expression.c_str(), REG_EXTENDED);
    if (error == 0) {
      renaming->compiled_ = true;
      return renaming;
    }
    std::array<char, 200> reason = {};
    ::regerror(error, &renaming->expression_, reason.data(), reason.size());
    why = fmt::format("--rename: '{}' is no extended regular expression: {}", expression, reason.data());
    return nullptr;
  }
  Renaming() = default;
  Renaming(const Renaming&) = delete;
  Renaming& operator=(const Renaming&) = delete;
  ~Renaming() {
    if (compiled_) ::regfree(&expression_);
  }

  [[nodiscard]] std::string apply(const std::string& name) const {
    std::array<regmatch_t, 10> groups = {};
    if (::regexec(&expression_, name.c_str(), groups.size(), groups.data(), 0) != 0) return name;
    std::string renamed = name.substr(0, static_cast<size_t>(groups[0].rm_so));
    for (size_t i = 0; i < replacement_.size(); ++i) {
      const bool escape = replacement_[i] == '\\' && i + 1 < replacement_.size();
      if (!escape) {
        renamed += replacement_[i];
        continue;
      }
      const char next = replacement_[++i];
      if (next < '0' || next > '9') {
        renamed += next;
        continue;
      }
      const regmatch_t& group = groups[static_cast<size_t>(next - '0')];
      if (group.rm_so >= 0)
        renamed += name.substr(static_cast<size_t>(group.rm_so), static_cast<size_t>(group.rm_eo - group.rm_so));
    }
    return renamed + name.substr(static_cast<size_t>(groups[0].rm_eo));
  }

 private:
  regex_t expression_ = {};
  bool compiled_ = false;
  std::string replacement_;
};

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns,
                             [&](const std::string& p) { return ::fnmatch(p.c_str(), name.c_str(), 0) == 0; });
}

// By what is asked for, else by the suffix of the target; nothing where neither tells.
std::optional<CheckpointFormat> format_of(const Options& options) {
  using enum CheckpointFormat;
  for (const CheckpointFormat format : {torch_zip, torch_legacy, safetensors})
    if (options.format == checkpoint_format_name(format)) return format;
  if (options.target.ends_with(".safetensors")) return safetensors;
  for (const std::string_view suffix : {".pt", ".pth", ".bin", ".ckpt"})
    if (options.target.ends_with(suffix)) return torch_zip;
  if (options.shard_bytes > 0) return safetensors;
  return std::nullopt;
}

void print_text(Console& console, const Conversion& result, double seconds) {
  for (const std::string& note : result.notes)
    console.note(fmt::format("headrace: note: {}", printable(note)));
  for (const std::string& file : result.files)
    console.line(printable(file));
  if (result.index) console.line(printable(*result.index));
  console.line(fmt::format("{}, {} written from {} in {}: {} read and written", show_count(result.tensors, "tensor"),
                           show_bytes(result.target_bytes), show_bytes(result.read_bytes), show_seconds(seconds),
                           show_rate(result.read_bytes + result.target_bytes, seconds)));
}

Exit run_convert(Console& console, const Options& options) {
  const std::optional<CheckpointFormat> format = format_of(options);
  if (!format)
    return report_usage(
        console, fmt::format("the name '{}' does not tell the format; name it with --format, or let the name end in "
                             ".safetensors, .pt, .pth, .bin or .ckpt",
                             options.target));
  std::vector<std::unique_ptr<Renaming>> renamings;
  for (const std::string& text : options.rename) {
    std::string why;
    renamings.push_back(Renaming::parse(text, why));
    if (!renamings.back()) return report_usage(console, why);
  }
  ProgressBar bar(console);
  ConvertOptions convert = {
      .format = *format,
      .shard_bytes = options.shard_bytes,
      .existing = options.overwrite ? Existing::replace : Existing::refuse,
      .others = options.tensors_only ? ConvertOptions::Others::leave_out : ConvertOptions::Others::refuse,
      .verify = options.no_verify ? Verify::off : Verify::automatic,
      .progress = bar.progress()};
  if (!options.dtype.empty()) convert.dtype = dtype_from_name(options.dtype);
  if (!options.select.empty() || !options.exclude.empty())
    convert.select = [&options](std::string_view name) {
      const std::string text(name);
      return (options.select.empty() || matches_any(options.select, text)) && !matches_any(options.exclude, text);
    };
  if (!renamings.empty())
    convert.rename = [&renamings](std::string_view name) {
      std::string renamed(name);
      for (const std::unique_ptr<Renaming>& renaming : renamings)
        renamed = renaming->apply(renamed);
      return renamed;
    };
  // For ragged ends, and what cannot be direct; more would only be memory.
  Result<Handle> handle = Handle::create({.staging_bytes = uint64_t{64} << 20});
  if (!handle) return report_error(console, handle.error());
  const Result<Conversion> result = convert_checkpoint(*handle, options.source, options.target, convert);
  if (!result) return bar.report(result.error());
  if (options.form == OutputForm::json)
    console.line(to_json(*result));
  else
    print_text(console, *result, bar.seconds());
  return Exit::done;
}

}  // namespace

Command add_convert(CLI::App& program) {
  CLI::App* command = add_command(program, "convert",
                                  "Write a checkpoint in another format, type, cut or part.\n"
                                  "It is streamed: memory stays at some 200 MB, whatever the size of the "
                                  "model. The target appears whole or not at all, and is "
                                  "safe from a power cut when the command is done.");
  const auto options = std::make_shared<Options>();
  add_text(*command, "IN", options->source,
           "a checkpoint file, a folder of shards, an index, or the start of the shards' names")
      .required();
  add_text(*command, "OUT", options->target, "the file to write; with --shard-size the folder").required();
  add_choice(*command, "--format", options->format, {"torch", "torch-legacy", "safetensors"},
             "Format of OUT. Without it the name tells: .safetensors, or .pt, .pth, .bin, .ckpt for torch.");
  add_choice(*command, "--dtype", options->dtype, {"float64", "float32", "float16", "bfloat16"},
             "Turn tensors of these four types into this one; others stay as they are.");
  add_repeated(*command, "--select", options->select, "PATTERN",
               "Take only tensors whose name matches this pattern, or another one of this option.");
  add_repeated(*command, "--exclude", options->exclude, "PATTERN",
               "Leave out tensors whose name matches this pattern.");
  add_repeated(*command, "--rename", options->rename, "REGEX=REPLACEMENT",
               "Replace the first match of an extended regular expression in each name; \\1 to \\9 are its groups. "
               "Several are done in order.");
  add_bytes(*command, "--shard-size", options->shard_bytes,
            "Write shards of at most this size, and their index, into the folder OUT.");
  add_flag(*command, "--tensors-only", options->tensors_only,
           "Leave out what a torch file holds besides tensors, instead of refusing to lose it.");
  add_flag(*command, "--overwrite", options->overwrite,
           "Replace OUT if it is there: the old file stays until the new one is whole.");
  add_flag(*command, "--no-verify", options->no_verify,
           "Take IN as it is, damage included, instead of comparing it with the CRC-32 that it holds.");
  add_json(*command, options->form);
  add_examples(
      *command,
      "Examples:\n"
      "  headrace convert pytorch_model.bin model.safetensors\n"
      "  headrace convert checkpoint/ model.safetensors\n"
      "  headrace convert model.safetensors small.pt --dtype bfloat16\n"
      "  headrace convert model.safetensors shards/ --shard-size 5GB\n"
      "  headrace convert run.pt w.safetensors --select 'model.*' --rename '^model\\.='\n\n"
      "From torch to torch the whole object is taken over: nesting, numbers, classes, shared storages. Between other "
      "formats, and "
      "with --dtype, --select, --exclude, --rename or --shard-size, tensors alone can be, by their joined names.");
  return {command, [options](Console& console) { return run_convert(console, *options); }};
}

}  // namespace headrace::cli
