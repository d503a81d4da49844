// SPDX-License-Identifier: Apache-2.0
// The page that `headrace tune --html` writes: a template that holds everything but the data.
// Any thread.
// Constants and values.
#pragma once

#include <string>
#include <string_view>

namespace headrace::cli {

extern const std::string_view kTunePage;

// With the result in it. Whatever names a machine has, they cannot end the place where they stand.
[[nodiscard]] std::string tune_page(std::string_view json);

}  // namespace headrace::cli
