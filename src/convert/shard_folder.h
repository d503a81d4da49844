// SPDX-License-Identifier: Apache-2.0
// A folder that appears whole or not at all: filled under a temporary name beside it, then renamed.
// One thread.
// Owns the temporary folder until commit(); destroyed without it, the folder is removed with all that is in it.
#pragma once

#include <string>
#include <string_view>

#include <headrace/atomic_file.h>
#include <headrace/error.h>

namespace headrace::convert {

class ShardFolder {
 public:
  // `path` must not exist, or be an empty folder, whose place and permissions the new one takes: nothing of somebody else's is
  // ever mixed with what is written here. A symbolic link is followed.
  [[nodiscard]] static Result<ShardFolder> create(const std::string& path);
  ShardFolder(ShardFolder&& other) noexcept;
  ShardFolder& operator=(ShardFolder&&) = delete;
  ~ShardFolder();

  // Of a file in it, now and once it is in place.
  [[nodiscard]] std::string path(std::string_view name) const;
  [[nodiscard]] std::string final_path(std::string_view name) const;
  [[nodiscard]] Status write_text(std::string_view name, std::string_view text) const;
  [[nodiscard]] Status commit(Durability durability);

 private:
  ShardFolder(std::string named, std::string target, std::string temporary);

  std::string named_;      // as the caller did
  std::string target_;     // links followed
  std::string temporary_;  // empty once it is in place
};

}  // namespace headrace::convert
