// SPDX-License-Identifier: Apache-2.0
// The word that a misspelt one was probably meant to be.
// Any thread: pure.
// The result is a view of one of the candidates.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace headrace::cli {

// Nothing where no candidate is near: within a third of the word's letters, by insertions, deletions, replacements and
// neighbours that changed places. '_' and '-' are alike.
[[nodiscard]] std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace headrace::cli
