// SPDX-License-Identifier: Apache-2.0
// errno → Error, with the remedy that fits the errno.
// Any thread.
// Owns nothing.
#pragma once

#include <string>
#include <string_view>

#include <headrace/error.h>

namespace headrace::os {

// `errno_value` is positive. The text of what to do is added for the errnos that users meet.
[[nodiscard]] Error system_error(std::string_view operation, std::string_view path, int errno_value);

// That the path can be that of a file: neither empty nor with a zero byte in it.
[[nodiscard]] Status check_path(std::string_view operation, std::string_view path);

// What a user can do about this errno in this operation; empty when there is nothing to say.
[[nodiscard]] std::string_view remedy(int errno_value) noexcept;

}  // namespace headrace::os
