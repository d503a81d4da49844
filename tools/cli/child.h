// SPDX-License-Identifier: Apache-2.0
// Runs another program to its end, or ends it: on a signal that stops this one, or when its time is over.
// One thread: that of main().
// Owns the child, which the kernel kills when this process dies.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace headrace::cli {

struct ChildEnd {
  std::string out;
  std::string err;
  int exit_code = -1;   // -1: it did not end by itself
  std::string why_not;  // in words, when exit_code is not 0
};

// Returns the path of a program on PATH, or nothing.
[[nodiscard]] std::string find_program(const std::string& name);

// `words` begin with the path of the program. `tick` is called some twenty times a second meanwhile.
[[nodiscard]] ChildEnd run_child(std::vector<std::string> words, std::chrono::seconds limit, void (*tick)(void*),
                                 void* context);

}  // namespace headrace::cli
