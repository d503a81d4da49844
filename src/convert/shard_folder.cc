// SPDX-License-Identifier: Apache-2.0
// A folder made beside its final name and renamed.
// See the header for threads.
// Owns what the header says.
#include "convert/shard_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <random>
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

bool is_mount_point(const std::string& path) {
  struct statx facts = {};
  return ::statx(AT_FDCWD, path.c_str(), 0, STATX_BASIC_STATS, &facts) == 0 &&
         (facts.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

// A folder there must be one that a rename can replace: better known now than after hours of writing. Returns what the path
// means after links.
Result<std::string> check_target(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status link = std::filesystem::symlink_status(path, error);
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_symlink(link) && !std::filesystem::exists(status))
    return failed(path, error ? error.value() : ENOENT, "this is a symbolic link that leads to no folder");
  if (!std::filesystem::exists(status)) return path;
  if (!std::filesystem::is_directory(status))
    return failed(path, ENOTDIR, "shards go into a folder, and this is a file");
  if (!std::filesystem::is_empty(path, error))
    return failed(path, error ? error.value() : ENOTEMPTY,
                  error ? std::string()
                        : "shards go into a folder of their own, and there are files in this one, which --overwrite "
                          "does not replace: name another");
  if (std::filesystem::equivalent(path, ".", error))
    return failed(path, EBUSY, "this is the working folder, which cannot be replaced; name a folder in it");
  if (is_mount_point(path))
    return failed(path, EBUSY, "a file system is mounted there, which cannot be replaced; name a folder in it");
  std::string target = std::filesystem::canonical(path, error).string();
  if (error) return failed(path, error.value());
  return target;
}

// Not by mkdtemp(), which makes folders for their owner alone.
Result<std::string> make_temporary(const std::string& target, const std::string& named) {
  constexpr int kAttemptsMax = 64;
  std::random_device random;
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    std::string temporary = fmt::format("{}.headrace-{:08x}", target, random());
    if (::mkdir(temporary.c_str(), 0777) == 0) return temporary;
    if (errno != EEXIST) return failed(named, errno);
  }
  return failed(named, EEXIST);
}

}  // namespace

ShardFolder::ShardFolder(std::string named, std::string target, std::string temporary)
    : named_(std::move(named)), target_(std::move(target)), temporary_(std::move(temporary)) {}

ShardFolder::ShardFolder(ShardFolder&& other) noexcept
    : named_(std::move(other.named_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})) {}

ShardFolder::~ShardFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

Result<ShardFolder> ShardFolder::create(const std::string& path) {
  const std::string named = without_slashes(path);
  Result<std::string> target = check_target(named);
  if (!target) return std::unexpected(std::move(target).error());
  Result<std::string> temporary = make_temporary(*target, named);
  if (!temporary) return std::unexpected(std::move(temporary).error());
  ShardFolder folder(named, *std::move(target), *std::move(temporary));
  std::error_code ignored;
  if (!std::filesystem::exists(folder.target_, ignored)) return folder;
  const os::Fd descriptor(::open(folder.temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor.is_open()) return failed(named, errno);
  if (Status taken = os::file_system().take_permissions(descriptor.get(), folder.target_, named); !taken)
    return std::unexpected(std::move(taken).error());
  return folder;
}

std::string ShardFolder::path(std::string_view name) const { return fmt::format("{}/{}", temporary_, name); }
std::string ShardFolder::final_path(std::string_view name) const { return fmt::format("{}/{}", named_, name); }

Status ShardFolder::write_text(std::string_view name, std::string_view text) const {
  const std::string file = path(name);
  const std::string shown = final_path(name);
  const os::Fd descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!descriptor.is_open()) return failed(shown, errno);
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed(shown, errno);
    text.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(descriptor.get()) != 0) return failed(shown, errno);
  return {};
}

Status ShardFolder::commit(Durability durability) {
  os::FileSystem& files = os::file_system();
  if (durability == Durability::data)
    if (Status synced = files.sync_folder_of(path("x")); !synced) return synced;
  // Onto an empty folder rename() works too; one that was filled meanwhile is left alone (ENOTEMPTY).
  if (Status renamed = files.rename(temporary_, target_); !renamed) {
    renamed.error().path = named_;
    return renamed;
  }
  temporary_.clear();
  return durability == Durability::data ? files.sync_folder_of(target_) : Status{};
}

}  // namespace headrace::convert
