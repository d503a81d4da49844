// SPDX-License-Identifier: Apache-2.0
// What went wrong, as a value: which operation, on which file and byte range, the errno by name, and what to do.
// Any thread. No exception leaves the library.
// An Error owns everything it names.
#pragma once

#include <version>

#ifndef __cpp_lib_expected
#error "headrace needs C++23: compile with -std=c++23 (g++ 12 or later)"
#endif

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include <headrace/export.h>

namespace headrace {

enum class ErrorCode : uint8_t {
  system,            // the operating system said no: `errno_value` tells why
  end_of_file,       // the file ends before the range asked for; `transferred` bytes were read
  cancelled,         // cancel() took effect before anything was sent
  aborted,           // abort() stopped the blocks not yet sent; `transferred` bytes were moved
  timed_out,         // the wait ended before the work did; the work goes on
  invalid_argument,  // the call itself makes no sense
  unavailable,       // an engine or feature asked for by name cannot work here; `detail` says why
  limit_reached,     // requests_max unfinished requests, and the handle was told not to wait
  interrupted,       // HandleOptions::interrupted ended the wait for room among the unfinished requests
  closed,            // the handle or file is closed, or belongs to the process that forked this one
  corrupt,           // the contents break the rules of the file's format, at `offset_bytes`; `detail` says which
};

// The name of an error code, such as "end_of_file". The string lives for ever.
HEADRACE_EXPORT std::string_view error_code_name(ErrorCode code) noexcept;

// The symbolic name of an errno, such as "ENOSPC"; "E?" for a number that this library does not know.
HEADRACE_EXPORT std::string_view errno_name(int errno_value) noexcept;

struct Error {
  ErrorCode code = ErrorCode::system;
  int errno_value = 0;             // positive errno; 0 when no system call failed
  std::string operation = {};      // "open", "read", "write", "datasync", "rename", ...
  std::string path = {};           // as the caller gave it, in the file system's bytes; empty when there is no file
  uint64_t offset_bytes = 0;       // first byte of the range that failed
  uint64_t length_bytes = 0;       // bytes asked for
  uint64_t transferred_bytes = 0;  // bytes moved from the start of the range without a gap
  std::string detail = {};         // what happened, and what the user can do about it

  // One line for people: operation, path, range, errno by name, detail.
  HEADRACE_EXPORT std::string message() const;
};

template <class T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

}  // namespace headrace
