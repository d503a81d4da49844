// SPDX-License-Identifier: Apache-2.0
// `headrace verify PATH`: is a checkpoint whole; with --against, is it the same as another.
// One thread.
// Owns its options.
#include <headrace/verify.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command.h"
#include "progress_bar.h"
#include "units.h"

namespace headrace::cli {
namespace {

struct Options {
  std::string path;
  std::optional<std::string> against;
  bool stats = false;
  OutputForm form = OutputForm::text;
};

constexpr size_t kShown = 50;

void print_stats(Console& console, const std::vector<TensorStats>& stats) {
  Table table({{"tensor"},
               {"dtype"},
               {"elements", Align::right},
               {"NaN", Align::right},
               {"Inf", Align::right},
               {"zero", Align::right},
               {"min", Align::right},
               {"max", Align::right}});
  const auto number = [](const std::optional<double>& value) { return value ? fmt::format("{:.6g}", *value) : "-"; };
  for (const TensorStats& one : stats) {
    const std::string name = printable(one.name) + (one.why_not.empty() ? "" : fmt::format(" ({})", one.why_not));
    table.row({name, std::string(dtype_facts(one.dtype).name), show_count(one.elements), show_count(one.nan),
               show_count(one.inf), show_count(one.zero), number(one.min), number(one.max)});
  }
  if (!table.empty()) table.print(console);
}

void print_text(Console& console, const Verification& result, double seconds) {
  print_stats(console, result.stats);
  print_problems(console, result.problems);
  uint64_t bytes = 0, summed = 0, read = 0;
  for (const VerifiedFile& file : result.files) {
    bytes += file.bytes;
    summed += file.summed_bytes;
    read += file.read_bytes;
  }
  const size_t files = result.files.size();
  if (files == 0) return console.line(fmt::format("{}: NOT GOOD", printable(result.path)));
  console.line(fmt::format("{}: {}: {} in {} {}, {}", printable(result.path), result.good() ? "good" : "NOT GOOD",
                           show_bytes(bytes), files, files == 1 ? "file" : "files", show_rate(bytes, seconds)));
  if (summed > 0) console.line(fmt::format("  {} compared with the CRC-32 that the file holds", show_bytes(summed)));
  if (read > 0)
    console.line(fmt::format("  {} could be read; the format has no checksums, so a changed value would not show",
                             show_bytes(read)));
}

Exit run_verify(Console& console, Handle& handle, const Options& options) {
  ProgressBar bar(console);
  const Result<Verification> result =
      verify_checkpoint(handle, options.path,
                        {.stats = options.stats ? VerifyOptions::Stats::per_tensor : VerifyOptions::Stats::none,
                         .progress = bar.progress()});
  if (!result) return bar.report(result.error());
  if (options.form == OutputForm::json)
    console.line(to_json(*result));
  else
    print_text(console, *result, bar.seconds());
  return result->good() ? Exit::done : Exit::corrupt;
}

// What the names that only one side has begin with, where the other has all of them without it: "model.", "module.".
std::string common_prefix(const Comparison& result) {
  std::vector<std::string_view> here, there;
  for (const TensorDifference& one : result.differences) {
    if (one.kind == TensorDifference::Kind::only_here) here.push_back(one.tensor);
    if (one.kind == TensorDifference::Kind::only_there) there.push_back(one.tensor);
  }
  if (here.empty() || there.empty()) return {};
  const bool here_longer = here.front().size() > there.front().size();
  const std::vector<std::string_view>& with = here_longer ? here : there;
  const std::vector<std::string_view>& without = here_longer ? there : here;
  const std::set<std::string_view> known(with.begin(), with.end());
  for (const std::string_view name : with) {
    if (!name.ends_with(without.front()) || name.size() == without.front().size()) continue;
    const std::string prefix(name.substr(0, name.size() - without.front().size()));
    const bool all =
        std::ranges::all_of(without, [&](std::string_view n) { return known.contains(prefix + std::string(n)); });
    if (all && prefix.ends_with('.')) return prefix;
  }
  return {};
}

void print_text(Console& console, const Comparison& result, double seconds) {
  for (size_t i = 0; i < std::min(result.differences.size(), kShown); ++i) {
    const TensorDifference& one = result.differences[i];
    std::string places;
    if (one.file_offset_bytes && one.other_file_offset_bytes)
      places = fmt::format(", at offset {} of its file here and {} there", *one.file_offset_bytes,
                           *one.other_file_offset_bytes);
    console.line(
        fmt::format("{}: {}: {}{}", difference_name(one.kind), printable(one.tensor), printable(one.text), places));
  }
  if (result.differences.size() > kShown)
    console.line(fmt::format("and {} more; --json tells all", result.differences.size() - kShown));
  if (const std::string prefix = common_prefix(result); !prefix.empty())
    console.line(
        fmt::format("The names differ by the prefix '{}': headrace convert with --rename can take it off or "
                    "put it on before they are compared.",
                    printable(prefix)));
  std::string verdict = "equal";
  if (!result.differences.empty()) {
    const auto of_kind = [&](TensorDifference::Kind kind) {
      return static_cast<uint64_t>(std::ranges::count(result.differences, kind, &TensorDifference::kind));
    };
    std::vector<std::string> counts;
    const auto tell = [&](uint64_t tensors, std::string_view what) {
      if (tensors > 0) counts.push_back(fmt::format("{} {}", show_count(tensors), what));
    };
    const uint64_t unequal = of_kind(TensorDifference::Kind::bytes);
    tell(unequal, "with other bytes");
    tell(of_kind(TensorDifference::Kind::dtype), "of another type");
    tell(of_kind(TensorDifference::Kind::shape), "of another shape");
    tell(of_kind(TensorDifference::Kind::only_here), "only here");
    tell(of_kind(TensorDifference::Kind::only_there), "only there");
    tell(result.compared_tensors - unequal, "equal");
    verdict = fmt::format("DIFFERENT ({})", fmt::join(counts, ", "));
  }
  console.line(fmt::format("{}: {}, {}, compared with {}, {}", verdict, show_count(result.compared_tensors, "tensor"),
                           show_bytes(result.compared_bytes), printable(result.other),
                           show_rate(2 * result.compared_bytes, seconds)));
}

Exit run_compare(Console& console, Handle& handle, const Options& options) {
  ProgressBar bar(console);
  const Result<Comparison> result = compare_checkpoints(handle, options.path, *options.against, bar.progress());
  if (!result) return bar.report(result.error());
  if (options.form == OutputForm::json)
    console.line(to_json(*result));
  else
    print_text(console, *result, bar.seconds());
  return result->differences.empty() ? Exit::done : Exit::corrupt;
}

Exit run(Console& console, const Options& options) {
  if (options.stats && options.against) return report_usage(console, "--stats and --against exclude each other");
  Result<Handle> handle = Handle::create();
  if (!handle) return report_error(console, handle.error());
  return options.against ? run_compare(console, *handle, options) : run_verify(console, *handle, options);
}

}  // namespace

// What is the same of many tensors is one line.
void print_problems(Console& console, const std::vector<CheckpointProblem>& problems) {
  using Same = std::tuple<CheckpointProblem::Severity, std::string_view, std::string_view>;
  std::map<Same, std::vector<std::string_view>> tensors;
  std::vector<Same> order;
  for (const CheckpointProblem& problem : problems) {
    const Same same = {problem.severity, problem.file, problem.text};
    const auto [group, added] = tensors.try_emplace(same);
    if (added) order.push_back(same);
    if (!problem.tensor.empty()) group->second.push_back(problem.tensor);
  }
  for (size_t i = 0; i < std::min(order.size(), kShown); ++i) {
    const auto& [severity, file, text] = order[i];
    const std::vector<std::string_view>& names = tensors.at(order[i]);
    std::string whose;
    if (names.size() == 1) whose = fmt::format(", tensor {}", printable(names.front()));
    if (names.size() > 1)
      whose = fmt::format(", {} tensors ({}, {}{})", names.size(), printable(names[0]), printable(names[1]),
                          names.size() > 2 ? ", ..." : "");
    console.line(fmt::format("{}: {}{}: {}", severity_name(severity), printable(file), whose, printable(text)));
  }
  if (order.size() > kShown) console.line(fmt::format("and {} more; --json tells all", order.size() - kShown));
}

Command add_verify(CLI::App& program) {
  CLI::App* command = add_command(program, "verify",
                                  "Read a checkpoint and tell whether it is whole, or equal to another.\n"
                                  "Every record is compared with its CRC-32 where the format has one (torch "
                                  "zip), and every size, range and index entry with "
                                  "what is there. It reads at the speed of the device, in bounded memory.");
  const auto options = std::make_shared<Options>();
  add_text(*command, "PATH", options->path,
           "a checkpoint file, a folder of shards, an index, or the start of the shards' names")
      .required();
  add_text(*command, "--against", options->against,
           "Compare tensor by tensor with this checkpoint, whose format may be another.")
      .value("OTHER");
  add_flag(*command, "--stats", options->stats,
           "Count NaN, infinities and zeros of each tensor, and tell minimum and maximum.");
  add_json(*command, options->form);
  add_examples(*command,
               "Examples:\n"
               "  headrace verify model.pt\n"
               "  headrace verify checkpoint/ --stats\n"
               "  headrace verify model.safetensors --against pytorch_model.bin\n\n"
               "Exit status: 0 good or equal, 3 damaged or different, 1 when that could not be told.");
  return {command, [options](Console& console) { return run(console, *options); }};
}

}  // namespace headrace::cli
