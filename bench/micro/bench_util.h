// SPDX-License-Identifier: Apache-2.0
// What the programs here share: end on an error, and the CPU time so far.
// Any thread.
// Owns nothing.
#pragma once

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include <headrace/error.h>

namespace headrace::bench {

[[noreturn]] inline void fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

template <class T>
T must(Result<T> result) {
  if (!result) fail(result.error().message());
  return *std::move(result);
}

// User and system time of all threads.
inline double process_cpu_seconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace headrace::bench
