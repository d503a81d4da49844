// SPDX-License-Identifier: Apache-2.0
// `headrace inspect PATH`: what is in a checkpoint.
// One thread.
// Owns its options.
#include <headrace/inspect.h>

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command.h"
#include "natural_order.h"
#include "signals.h"
#include "units.h"

namespace headrace::cli {
namespace {

struct Options {
  std::string path;
  std::optional<std::string> filter;
  std::string sort = "file";
  bool tree = false;
  bool summary = false;
  OutputForm form = OutputForm::text;
};

struct Totals {
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t bytes = 0;

  void add(const InspectedTensor& tensor) {
    ++tensors;
    elements += element_count(tensor.shape);
    bytes += tensor.bytes;
  }
};

std::string prefix_of(std::string_view name) { return std::string(name.substr(0, name.find('.'))); }

std::string show_shape(const std::vector<uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

void print_files(Console& console, const Inspection& inspection) {
  Totals all;
  for (const InspectedTensor& tensor : inspection.tensors)
    all.add(tensor);
  uint64_t bytes = 0;
  for (const InspectedFile& file : inspection.files)
    bytes += file.bytes;
  const bool several = inspection.files.size() > 1;
  console.line(fmt::format(
      "{}: {}, {}, {}, {}", printable(inspection.path),
      inspection.files.size() == 1 ? inspection.files.front().format : fmt::format("{} files", inspection.files.size()),
      show_bytes(bytes), show_count(all.tensors, "tensor"), show_count(all.elements, "element")));
  if (inspection.index) console.line(fmt::format("  index {}", printable(*inspection.index)));
  for (const InspectedFile& file : inspection.files) {
    const std::string sums = file.format == "dcp"            ? "archives with sums of their own"
                             : file.storages_with_crc32 == 0 ? "no checksums"
                             : file.storages_with_crc32 == file.storages
                                 ? "CRC-32 of every storage"
                                 : fmt::format("CRC-32 of {} of {} storages", file.storages_with_crc32, file.storages);
    if (several)
      console.line(fmt::format("  {}: {}, {}, {}", printable(file.path), file.format, show_bytes(file.bytes), sums));
    if (!several)
      console.line(
          fmt::format("  {} in {}, {}", show_bytes(file.storage_bytes), show_count(file.storages, "storage"), sums));
    // Shards repeat what the first one says.
    if (&file != &inspection.files.front() && file.metadata == inspection.files.front().metadata) continue;
    for (const auto& [key, value] : file.metadata)
      console.line(fmt::format("  metadata {} = {}", printable(key), printable(beginning(value, 200))));
  }
}

using TotalsByName = std::map<std::string, Totals, NaturalLess>;

void print_totals(Console& console, const std::string& title, const TotalsByName& totals) {
  Table table({{title}, {"tensors", Align::right}, {"elements", Align::right}, {"bytes", Align::right}});
  for (const auto& [name, total] : totals)
    table.row({printable(name), show_count(total.tensors), show_count(total.elements), show_bytes(total.bytes)});
  console.line();
  table.print(console);
}

void print_tensors(Console& console, const Inspection& inspection) {
  std::vector<Table::Column> columns = {
      {"tensor"}, {"dtype"}, {"shape"}, {"bytes", Align::right}, {"offset", Align::right}, {"align", Align::right}};
  const bool several = inspection.files.size() > 1;
  if (several) columns.push_back({"file", Align::right});
  Table table(columns);
  for (const InspectedTensor& tensor : inspection.tensors) {
    std::string name = printable(tensor.name);
    if (!tensor.shares_with.empty()) name += fmt::format(" (in the storage of {})", printable(tensor.shares_with));
    if (tensor.pieces != 1) name += fmt::format(" ({} pieces)", tensor.pieces);
    if (!tensor.contiguous) name += " (strided)";
    std::vector<std::string> cells = {name,
                                      std::string(dtype_facts(tensor.dtype).name),
                                      show_shape(tensor.shape),
                                      fmt::format("{}", tensor.bytes),
                                      fmt::format("{}", tensor.offset_bytes),
                                      fmt::format("{}", std::min<uint64_t>(tensor.alignment_bytes, 4096))};
    if (several) cells.push_back(fmt::format("{}", tensor.file + 1));
    table.row(std::move(cells));
  }
  console.line();
  table.print(console);
}

// The end of the name's first `words` words, its dots included; the whole name where it has no more.
size_t end_of_words(std::string_view name, size_t words) {
  size_t end = 0;
  for (size_t i = 0; i < words; ++i) {
    const size_t dot = name.find('.', end);
    if (dot == std::string_view::npos) return name.size();
    end = dot + 1;
  }
  return end;
}

// Names that share their first words stand below these, with the sum of what they hold. Names of strangers may be all dots:
// what is deeper than kDepthMax stays together.
class Tree {
 public:
  void add(const InspectedTensor& tensor) {
    size_t depth = 0;
    for (size_t dot = tensor.name.find('.'); dot != std::string::npos && depth < kDepthMax;
         dot = tensor.name.find('.', dot + 1), ++depth)
      branches_[tensor.name.substr(0, dot + 1)].add(tensor);
    leaves_.push_back(
        {tensor.name, true,
         indented(depth, tensor.name.substr(end_of_words(tensor.name, depth))) +
             fmt::format("  {} {} {}", dtype_facts(tensor.dtype).name, show_shape(tensor.shape),
                         show_bytes(tensor.bytes)) +
             (tensor.shares_with.empty() ? std::string()
                                         : fmt::format(" (in the storage of {})", printable(tensor.shares_with)))});
  }

  void print(Console& console) {
    std::vector<Line> lines;
    for (const auto& [name, total] : branches_) {
      const auto depth = static_cast<size_t>(std::ranges::count(name, '.')) - 1;
      std::string word = name.substr(end_of_words(name, depth));
      word.pop_back();
      lines.push_back({name, false,
                       indented(depth, word) +
                           fmt::format("  {}, {}", show_count(total.tensors, "tensor"), show_bytes(total.bytes))});
    }
    std::ranges::move(leaves_, std::back_inserter(lines));
    // A branch stays before a tensor of the same name, one that ends with a dot.
    std::ranges::sort(lines, [](const Line& a, const Line& b) {
      const std::strong_ordering order = natural_order(a.name, b.name);
      return order != 0 ? order < 0 : a.leaf < b.leaf;
    });
    for (const Line& line : lines)
      console.line(line.text);
  }

 private:
  static constexpr size_t kDepthMax = 64;
  struct Line {
    std::string name;
    bool leaf = false;
    std::string text;
  };

  static std::string indented(size_t depth, std::string_view word) {
    return std::string(2 * depth, ' ') + printable(word);
  }

  std::map<std::string, Totals> branches_;  // by every prefix that ends with a dot
  std::vector<Line> leaves_;                // by name
};

void print_tree(Console& console, const std::vector<InspectedTensor>& tensors) {
  Tree tree;
  for (const InspectedTensor& tensor : tensors)
    tree.add(tensor);
  console.line();
  tree.print(console);
}

// Values beside the tensors: steps, learning rates, versions.
void print_others(Console& console, const std::vector<StoredValue>& others) {
  if (others.empty()) return;
  constexpr size_t kShown = 50;
  Table table({{"other value"}, {"is"}});
  for (size_t i = 0; i < std::min(others.size(), kShown); ++i)
    table.row({printable(others[i].name), printable(beginning(others[i].text, 100))});
  console.line();
  table.print(console);
  if (others.size() > kShown) console.line(fmt::format("and {} more; --json tells all", others.size() - kShown));
}

void choose(std::vector<InspectedTensor>& tensors, const Options& options) {
  if (options.filter)
    std::erase_if(tensors,
                  [&](const InspectedTensor& t) { return ::fnmatch(options.filter->c_str(), t.name.c_str(), 0) != 0; });
  if (options.sort == "name") std::ranges::stable_sort(tensors, NaturalLess(), &InspectedTensor::name);
  if (options.sort == "size") std::ranges::stable_sort(tensors, std::ranges::greater(), &InspectedTensor::bytes);
  if (options.sort == "offset")
    std::ranges::stable_sort(tensors, {}, [](const InspectedTensor& t) { return std::pair(t.file, t.offset_bytes); });
}

void print_text(Console& console, const Inspection& inspection, const Options& options) {
  print_files(console, inspection);
  TotalsByName by_dtype, by_prefix;
  for (const InspectedTensor& tensor : inspection.tensors) {
    by_dtype[std::string(dtype_facts(tensor.dtype).name)].add(tensor);
    by_prefix[prefix_of(tensor.name)].add(tensor);
  }
  if (inspection.tensors.empty() && options.filter)
    console.line(fmt::format("no tensor matches '{}'", printable(*options.filter)));
  if (!inspection.tensors.empty()) {
    print_totals(console, "dtype", by_dtype);
    if (by_prefix.size() > 1 && by_prefix.size() <= 40) print_totals(console, "prefix", by_prefix);
    if (options.tree)
      print_tree(console, inspection.tensors);
    else if (!options.summary)
      print_tensors(console, inspection);
  }
  if (!options.summary) print_others(console, inspection.others);
  if (!inspection.problems.empty()) console.line();
  print_problems(console, inspection.problems);
}

Exit run_inspect(Console& console, const Options& options) {
  // The heads of files are small: one thread is made sooner than several.
  Result<Handle> handle = Handle::create({.engine = EngineKind::posix, .workers = 1});
  if (!handle) return report_error(console, handle.error());
  Result<Inspection> inspection = inspect_checkpoint(*handle, options.path, {.interrupted = [] { return stopped(); }});
  if (!inspection) return report_error(console, inspection.error());
  choose(inspection->tensors, options);
  const bool broken = std::ranges::any_of(inspection->problems, [](const CheckpointProblem& p) {
    return p.severity == CheckpointProblem::Severity::error;
  });
  if (options.form == OutputForm::json)
    console.line(to_json(*inspection));
  else
    print_text(console, *inspection, options);
  return broken ? Exit::corrupt : Exit::done;
}

}  // namespace

Command add_inspect(CLI::App& program) {
  CLI::App* command =
      add_command(program, "inspect",
                  "Show what is in a checkpoint: tensors, types, shapes, places, metadata, problems.\n"
                  "PATH is a file (torch.save of either kind, safetensors), a folder of shards, an index, "
                  "or the common start of the names of "
                  "shards. Only the heads of files are read, and nothing in a pickle is run.");
  const auto options = std::make_shared<Options>();
  add_text(*command, "PATH", options->path, "the checkpoint").required();
  add_flag(*command, "--tree", options->tree, "Show names as a tree, each branch with the sum of what it holds.");
  add_flag(*command, "--summary", options->summary, "Show totals only, not each tensor.");
  add_choice(*command, "--sort", options->sort, {"file", "name", "size", "offset"},
             "Order of the tensors; file: as they stand there.");
  add_text(*command, "--filter", options->filter,
           "Show only tensors whose name matches this pattern, such as '*.weight'.")
      .value("PATTERN");
  add_json(*command, options->form);
  add_examples(*command,
               "Examples:\n"
               "  headrace inspect model.safetensors\n"
               "  headrace inspect checkpoint/ --tree\n"
               "  headrace inspect model.pt --filter '*.bias' --sort size\n"
               "  headrace inspect model.pt --json | jq '.totals'\n\n"
               "Exit status: 3 where a file breaks its format or an index contradicts its files.");
  return {command, [options](Console& console) { return run_inspect(console, *options); }};
}

}  // namespace headrace::cli
