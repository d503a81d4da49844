// SPDX-License-Identifier: Apache-2.0
// A folder made beside its final name and renamed.
// See the header for threads.
// Owns what the header says.
#include "convert/shard_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "os/error.h"
#include "os/fd.h"
#include "os/file_system.h"

namespace headrace::convert {
namespace {

constexpr const char* kSaving = "save";

std::unexpected<Error> failed(const std::string& path, int errno_value, std::string detail = {}) {
  Error error = os::system_error(kSaving, path, errno_value);
  if (!detail.empty()) error.detail = std::move(detail);
  return std::unexpected(std::move(error));
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/'))
    path.pop_back();
  return path;
}

}  // namespace

ShardFolder::ShardFolder(std::string target, std::string temporary)
    : target_(std::move(target)), temporary_(std::move(temporary)) {}

ShardFolder::ShardFolder(ShardFolder&& other) noexcept
    : target_(std::move(other.target_)), temporary_(std::exchange(other.temporary_, {})) {}

ShardFolder::~ShardFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

Result<ShardFolder> ShardFolder::create(const std::string& path) {
  const std::string target = without_slashes(path);
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(target, error);
  if (std::filesystem::exists(status)) {
    if (!std::filesystem::is_directory(status))
      return failed(target, ENOTDIR, "shards go into a folder, and this is a file");
    if (!std::filesystem::is_empty(target, error))
      return failed(target, error ? error.value() : ENOTEMPTY,
                    error ? std::string() : "shards go into a folder of their own, and there are files in this one");
  }
  std::string temporary = fmt::format("{}.headrace-XXXXXX", target);
  if (::mkdtemp(temporary.data()) == nullptr) return failed(temporary, errno);
  // mkdtemp makes folders for their owner alone.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  (void)::chmod(temporary.c_str(), 0777 & ~mask);
  return ShardFolder(target, std::move(temporary));
}

std::string ShardFolder::path(std::string_view name) const { return fmt::format("{}/{}", temporary_, name); }
std::string ShardFolder::final_path(std::string_view name) const { return fmt::format("{}/{}", target_, name); }

Status ShardFolder::write_text(std::string_view name, std::string_view text) const {
  const std::string file = path(name);
  const os::Fd descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!descriptor.is_open()) return failed(file, errno);
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed(file, errno);
    text.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(descriptor.get()) != 0) return failed(file, errno);
  return {};
}

Status ShardFolder::commit(Durability durability) {
  os::FileSystem& files = os::file_system();
  if (durability == Durability::data)
    if (Status synced = files.sync_folder_of(path("x")); !synced) return synced;
  // Onto an empty folder rename() works too; one that was filled meanwhile is left alone (ENOTEMPTY).
  if (Status renamed = files.rename(temporary_, target_); !renamed) return renamed;
  temporary_.clear();
  return durability == Durability::data ? files.sync_folder_of(target_) : Status{};
}

}  // namespace headrace::convert
