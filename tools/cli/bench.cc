// SPDX-License-Identifier: Apache-2.0
// `headrace bench`: its commands, and the one that is written in Python.
// One thread.
// Owns the list of commands.
#include "bench.h"

#include <CLI/CLI.hpp>

#include "python.h"

namespace headrace::cli {

Command add_bench_checkpoint(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "checkpoint",
      "Compare ways to save and load checkpoints; needs torch.\n"
      "The micro-benchmarks of DeepSpeed's FastPersist guide: tensor, model, engine, load. Everything behind the word "
      "goes to `python3 -m headrace bench checkpoint`, also --help.");
  return pass_to_python(command, {"bench", "checkpoint"});
}

Command add_bench(CLI::App& program) {
  CLI::App* bench = program.add_subcommand(
      "bench",
      "Measure how fast files are read and written here.\n"
      "A benchmark makes files of its own, which have no name and are gone when it ends, however it ends; it never "
      "writes to a file that it did not make, nor to a block device.");
  bench->require_subcommand(1);
  const auto commands = std::make_shared<std::vector<Command>>();
  *commands = {add_bench_io(*bench), add_bench_engines(*bench), add_bench_checkpoint(*bench),
               add_bench_compare(*bench)};
  for (const Command& command : *commands) {
    if (command.parser->get_name() != "checkpoint")
      command.parser->set_help_flag("--help,-h", "Print this help and exit.");
  }
  return {bench, [commands](Console& console) {
            for (const Command& command : *commands)
              if (command.parser->parsed()) return command.run(console);
            return report_usage(console, "headrace bench needs a command");
          }};
}

}  // namespace headrace::cli
