// SPDX-License-Identifier: Apache-2.0
// Waiting for many transfers in a call that the user may interrupt.
// Any thread.
// Owns nothing.
#pragma once

#include <functional>
#include <span>

#include <headrace/error.h>
#include <headrace/transfer.h>

namespace headrace::checkpoint {

// Returns once all are done, whatever happens: the caller's memory is in use before. When one fails, or `interrupted`
// says true, what was not sent yet of the others is stopped. The error is the one that was the reason.
[[nodiscard]] Status wait_for_all(std::span<const Transfer> transfers, const std::function<bool()>& interrupted,
                                  const char* operation);

}  // namespace headrace::checkpoint
