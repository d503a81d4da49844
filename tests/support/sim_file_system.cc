// SPDX-License-Identifier: Apache-2.0
// Names and lengths over a SimDisk; and the real file system with faults in front.
#include "tests/support/sim_file_system.h"

#include <fcntl.h>

#include <array>
#include <cerrno>
#include <utility>

#include "os/error.h"
#include "transfer/handle_state.h"
#include "transfer/open_file.h"

namespace headrace::test {
namespace {

std::unexpected<Error> failure(const char* operation, const std::string& path, int errno_value) {
  return std::unexpected(os::system_error(operation, path, errno_value));
}

os::Fd any_descriptor() { return os::Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)); }

}  // namespace

std::shared_ptr<SimFile> SimFileSystem::put(const std::string& path, std::vector<std::byte> bytes) {
  const std::lock_guard lock(disk_.mutex());
  auto file = std::make_shared<SimFile>();
  file->name = path;
  file->bytes = std::move(bytes);
  names_[path] = file;
  return file;
}

std::shared_ptr<SimFile> SimFileSystem::get(const std::string& path) {
  const std::lock_guard lock(disk_.mutex());
  const auto found = names_.find(path);
  return found == names_.end() ? nullptr : found->second;
}

std::vector<std::string> SimFileSystem::all_names() {
  const std::lock_guard lock(disk_.mutex());
  std::vector<std::string> names;
  for (const auto& [name, file] : names_)
    names.push_back(name);
  return names;
}

std::vector<std::byte> SimFileSystem::bytes_of(const std::string& path) {
  const std::shared_ptr<SimFile> file = get(path);
  const std::lock_guard lock(disk_.mutex());
  return file ? file->bytes : std::vector<std::byte>();
}

size_t SimFileSystem::files() {
  const std::lock_guard lock(disk_.mutex());
  return names_.size();
}

Status SimFileSystem::step(const char* name, const std::string& path) {
  if (const std::optional<int> errno_value = faults.next(name)) return failure(name, path, *errno_value);
  return {};
}

os::OpenedFile SimFileSystem::opened(const std::string& path, std::shared_ptr<SimFile> file) {
  os::OpenedFile out = {.descriptor = any_descriptor(),
                        .readable = true,
                        .writable = true,
                        .regular = true,
                        .block_bytes = block_bytes,
                        .path = path};
  out.device = UINT64_MAX;
  out.inode = reinterpret_cast<uintptr_t>(file.get());
  disk_.bind(out.descriptor.get(), std::move(file), engine::Path::buffered);
  return out;
}

Result<os::OpenedFile> SimFileSystem::open(const std::string& path, FileMode mode) {
  if (Status stepped = step("open", path); !stepped) return std::unexpected(stepped.error());
  std::shared_ptr<SimFile> file = get(path);
  const bool exists = file != nullptr;
  if (!exists && mode == FileMode::read) return failure("open", path, ENOENT);
  if (exists && mode == FileMode::create) return failure("open", path, EEXIST);
  if (!exists) file = put(path, {});
  if (mode == FileMode::truncate) {
    const std::lock_guard lock(disk_.mutex());
    file->bytes.clear();
  }
  os::OpenedFile out = opened(path, std::move(file));
  out.created = !exists;
  out.writable = mode != FileMode::read;
  return out;
}

Result<os::OpenedFile> SimFileSystem::duplicate(int descriptor) {
  if (Status stepped = step("duplicate", {}); !stepped) return std::unexpected(stepped.error());
  const std::shared_ptr<SimFile> file = disk_.file_of(descriptor);
  if (!file) return failure("duplicate", {}, EBADF);
  return opened(file->name, file);
}

Result<os::Fd> SimFileSystem::reopen_direct(const os::OpenedFile& file) {
  if (Status stepped = step("reopen_direct", file.path); !stepped) return std::unexpected(stepped.error());
  if (refuses_direct_open) return failure("open with O_DIRECT", file.path, EINVAL);
  os::Fd descriptor = any_descriptor();
  disk_.bind(descriptor.get(), disk_.file_of(file.descriptor.get()), engine::Path::direct);
  return descriptor;
}

os::DirectAlignment SimFileSystem::direct_alignment(int) {
  return {.memory_bytes = disk_.options().direct_memory_bytes,
          .offset_bytes = disk_.options().direct_offset_bytes,
          .told = true};
}

std::optional<uint64_t> SimFileSystem::resident_bytes(int, uint64_t, uint64_t) { return resident; }

Result<uint64_t> SimFileSystem::size_bytes(int descriptor, const std::string& path) {
  if (Status stepped = step("size", path); !stepped) return std::unexpected(stepped.error());
  const std::shared_ptr<SimFile> file = disk_.file_of(descriptor);
  const std::lock_guard lock(disk_.mutex());
  return file->bytes.size();
}

Result<os::OpenedFile> SimFileSystem::create_exclusive(const std::string& path, uint32_t) {
  if (Status stepped = step("create", path); !stepped) return std::unexpected(stepped.error());
  if (get(path)) return failure("create", path, EEXIST);
  os::OpenedFile out = opened(path, put(path, {}));
  out.created = true;
  return out;
}

Status SimFileSystem::allocate(int descriptor, uint64_t bytes, const std::string& path) {
  if (Status stepped = step("allocate", path); !stepped) return stepped;
  const std::shared_ptr<SimFile> file = disk_.file_of(descriptor);
  const std::lock_guard lock(disk_.mutex());
  if (bytes > file->capacity) return failure("allocate", path, ENOSPC);
  if (file->bytes.size() < bytes) file->bytes.resize(bytes);
  return {};
}

void SimFileSystem::grow(int descriptor, uint64_t bytes, uint32_t) {
  const std::shared_ptr<SimFile> file = disk_.file_of(descriptor);
  const std::lock_guard lock(disk_.mutex());
  if (bytes <= file->capacity && file->bytes.size() < bytes) file->bytes.resize(bytes);
}

Status SimFileSystem::truncate(int descriptor, uint64_t bytes, const std::string& path) {
  if (Status stepped = step("truncate", path); !stepped) return stepped;
  const std::shared_ptr<SimFile> file = disk_.file_of(descriptor);
  const std::lock_guard lock(disk_.mutex());
  file->bytes.resize(bytes);
  return {};
}

Status SimFileSystem::take_permissions(int, const std::string&, const std::string& path) { return step("chmod", path); }
Status SimFileSystem::datasync(int, const std::string& path) { return step("datasync", path); }

Status SimFileSystem::rename(const std::string& from, const std::string& to) {
  if (Status stepped = step("rename", from); !stepped) return stepped;
  const std::lock_guard lock(disk_.mutex());
  const auto found = names_.find(from);
  if (found == names_.end()) return failure("rename", from, ENOENT);
  names_[to] = found->second;
  names_.erase(from);
  return {};
}

Status SimFileSystem::rename_new(const std::string& from, const std::string& to) {
  {
    const std::lock_guard lock(disk_.mutex());
    if (names_.contains(to)) return failure("rename", to, EEXIST);
  }
  return rename(from, to);
}

Status SimFileSystem::unlink(const std::string& path) {
  if (Status stepped = step("unlink", path); !stepped) return stepped;
  const std::lock_guard lock(disk_.mutex());
  if (names_.erase(path) == 0) return failure("unlink", path, ENOENT);
  return {};
}

Status SimFileSystem::sync_folder_of(const std::string& path) { return step("sync folder", path); }

// A granule of zeros is a hole.
uint64_t SimFileSystem::data_end(int descriptor, uint64_t from, uint64_t to) {
  const std::shared_ptr<SimFile> file = disk_.file_of(descriptor);
  const std::lock_guard lock(disk_.mutex());
  uint64_t end = to;
  while (end > from && file->bytes[end - 1] == std::byte{0})
    --end;
  return end == from ? from : std::min(to, (end + block_bytes - 1) / block_bytes * block_bytes);
}

bool SimFileSystem::names(const std::string& path, int descriptor, os::Links) {
  const std::shared_ptr<SimFile> file = get(path);
  return file != nullptr && file == disk_.file_of(descriptor);
}

Status FaultyFileSystem::step(const char* name, const std::string& path) {
  if (const std::optional<int> errno_value = faults.next(name)) return failure(name, path, *errno_value);
  return {};
}

Result<os::OpenedFile> FaultyFileSystem::open(const std::string& path, FileMode mode) {
  if (Status stepped = step("open", path); !stepped) return std::unexpected(stepped.error());
  return os::FileSystem::open(path, mode);
}
Result<os::Fd> FaultyFileSystem::reopen_direct(const os::OpenedFile& file) {
  if (Status stepped = step("reopen_direct", file.path); !stepped) return std::unexpected(stepped.error());
  return os::FileSystem::reopen_direct(file);
}
Result<uint64_t> FaultyFileSystem::size_bytes(int descriptor, const std::string& path) {
  if (Status stepped = step("size", path); !stepped) return std::unexpected(stepped.error());
  return os::FileSystem::size_bytes(descriptor, path);
}
Result<os::OpenedFile> FaultyFileSystem::create_exclusive(const std::string& path, uint32_t mode) {
  if (Status stepped = step("create", path); !stepped) return std::unexpected(stepped.error());
  return os::FileSystem::create_exclusive(path, mode);
}
Status FaultyFileSystem::allocate(int descriptor, uint64_t bytes, const std::string& path) {
  if (Status stepped = step("allocate", path); !stepped) return stepped;
  return os::FileSystem::allocate(descriptor, bytes, path);
}
Status FaultyFileSystem::truncate(int descriptor, uint64_t bytes, const std::string& path) {
  if (Status stepped = step("truncate", path); !stepped) return stepped;
  return os::FileSystem::truncate(descriptor, bytes, path);
}
Status FaultyFileSystem::take_permissions(int descriptor, const std::string& old, const std::string& path) {
  if (Status stepped = step("chmod", path); !stepped) return stepped;
  return os::FileSystem::take_permissions(descriptor, old, path);
}
Status FaultyFileSystem::datasync(int descriptor, const std::string& path) {
  if (Status stepped = step("datasync", path); !stepped) return stepped;
  return os::FileSystem::datasync(descriptor, path);
}
Status FaultyFileSystem::rename(const std::string& from, const std::string& to) {
  if (Status stepped = step("rename", from); !stepped) return stepped;
  return os::FileSystem::rename(from, to);
}
Status FaultyFileSystem::rename_new(const std::string& from, const std::string& to) {
  if (Status stepped = step("rename", from); !stepped) return stepped;
  return os::FileSystem::rename_new(from, to);
}
Status FaultyFileSystem::unlink(const std::string& path) {
  if (Status stepped = step("unlink", path); !stepped) return stepped;
  return os::FileSystem::unlink(path);
}
Status FaultyFileSystem::sync_folder_of(const std::string& path) {
  if (Status stepped = step("sync folder", path); !stepped) return stepped;
  return os::FileSystem::sync_folder_of(path);
}

Handle make_sim_handle(SimDisk& disk, const HandleOptions& options) {
  const std::array candidates = {transfer::EngineCandidate{.kind = EngineKind::posix, .factory = disk.factory()}};
  Result<std::shared_ptr<transfer::HandleState>> state = transfer::HandleState::create(options, candidates);
  return state ? Handle(*std::move(state)) : Handle();
}

File open_sim(SimFileSystem& system, const std::string& path, FileMode mode) {
  Result<std::shared_ptr<transfer::OpenFile>> file = transfer::OpenFile::open(system, path, mode);
  return file ? File(*std::move(file)) : File();
}

}  // namespace headrace::test
