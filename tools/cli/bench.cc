// SPDX-License-Identifier: Apache-2.0
// `headrace bench`: its commands, and the one that is written in Python.
// One thread.
// Owns nothing.
#include "bench.h"

namespace headrace::cli {

Command add_bench_checkpoint(CLI::App& bench) {
  CLI::App* command = add_command(
      bench, "checkpoint",
      "Compare ways to save and load checkpoints; needs torch.\n"
      "The micro-benchmarks of DeepSpeed's FastPersist guide: tensor, model, engine, load. Everything behind the word "
      "goes to `python3 -m headrace bench checkpoint`, also --help.");
  return pass_to_python(command, {"bench", "checkpoint"});
}

Command add_bench(CLI::App& program) {
  CLI::App* bench = add_command(
      program, "bench",
      "Measure how fast files are read and written here.\n"
      "A benchmark makes files of its own, which have no name and are gone when it ends, however it ends; it never "
      "writes to a file that it did not make, nor to a block device.");
  return choose_among(bench, {add_bench_io(*bench), add_bench_engines(*bench), add_bench_checkpoint(*bench),
                              add_bench_compare(*bench)});
}

}  // namespace headrace::cli
