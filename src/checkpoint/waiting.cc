// SPDX-License-Identifier: Apache-2.0
// See the header.
// Any thread.
// Owns nothing.
#include "checkpoint/waiting.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace headrace::checkpoint {
namespace {

constexpr auto kAskEvery = std::chrono::milliseconds(100);

// Of those that are done, the error that was not a consequence of another; nothing if all went well.
std::optional<Error> first_error(std::span<const Transfer> transfers) {
  std::optional<Error> found;
  for (const Transfer& transfer : transfers) {
    if (!transfer.done()) continue;
    Result<uint64_t> result = transfer.result();
    if (!result && (!found || found->code == ErrorCode::aborted)) found = std::move(result).error();
    if (found && found->code != ErrorCode::aborted) break;
  }
  return found;
}

}  // namespace

Status wait_for_all(std::span<const Transfer> transfers, const std::function<bool()>& interrupted,
                    const char* operation) {
  constexpr Transfer::Nanoseconds kForEver{-1};
  const Transfer::Nanoseconds patience = interrupted ? Transfer::Nanoseconds(kAskEvery) : kForEver;
  bool by_user = false;
  while (wait(transfers, WaitFor::first_error, patience) < transfers.size()) {
    by_user = interrupted && interrupted();
    if (!by_user && !first_error(transfers)) continue;
    for (Transfer transfer : transfers)
      transfer.abort();
    (void)wait(transfers, WaitFor::all, kForEver);
    break;
  }
  // Asked of every one: a failed write that nobody asked about would be told again when the handle closes.
  for (const Transfer& transfer : transfers)
    (void)transfer.result();
  if (by_user) {
    return std::unexpected(
        Error{.code = ErrorCode::interrupted, .operation = operation, .detail = "a signal handler ended it"});
  }
  if (std::optional<Error> error = first_error(transfers)) return std::unexpected(*std::move(error));
  return {};
}

}  // namespace headrace::checkpoint
