// SPDX-License-Identifier: Apache-2.0
// Linux. Files open without blocking on FIFOs; everything that cannot be addressed by offset is refused by name.
// Any thread.
// Stateless.
#include "os/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "os/error.h"
#include "os/page_cache.h"
#include "os/signal_guard.h"

namespace headrace::os {
namespace {

constexpr int kOpenRetriesMax = 16;  // against others who create and remove the same name

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  int descriptor = -1;
  do {
    descriptor = ::open(path, flags | O_CLOEXEC | O_NOCTTY, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

Status status_of(int rc, std::string_view operation, const std::string& path) {
  if (rc == 0) return {};
  return std::unexpected(system_error(operation, path, errno));
}

std::string descriptor_link(int descriptor) { return fmt::format("/proc/self/fd/{}", descriptor); }

std::string name_of_descriptor(int descriptor) {
  char target[PATH_MAX];
  const ssize_t length = ::readlink(descriptor_link(descriptor).c_str(), target, sizeof target);
  if (length > 0 && target[0] == '/') return std::string(target, static_cast<size_t>(length));
  return fmt::format("descriptor {}", descriptor);
}

// What kind of file this is, or why it cannot be used.
Status describe(OpenedFile& file) {
  struct stat status = {};
  const int descriptor = file.descriptor.get();
  if (::fstat(descriptor, &status) != 0) return std::unexpected(system_error("stat", file.path, errno));
  if (S_ISDIR(status.st_mode)) return std::unexpected(system_error("open", file.path, EISDIR));
  if (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode))
    return std::unexpected(system_error("open", file.path, ESPIPE));
  file.regular = S_ISREG(status.st_mode);
  file.device = status.st_dev;
  file.inode = status.st_ino;
  file.block_device = S_ISBLK(status.st_mode);
  if (S_ISCHR(status.st_mode) && ::lseek(descriptor, 0, SEEK_CUR) < 0)
    return std::unexpected(system_error("open", file.path, ESPIPE));
  file.block_bytes = static_cast<uint32_t>(status.st_blksize > 0 ? status.st_blksize : 0);
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0) return std::unexpected(system_error("open", file.path, errno));
  const int access = flags & O_ACCMODE;
  file.readable = access != O_WRONLY;
  file.writable = access != O_RDONLY;
  struct statfs system = {};
  if (file.regular && ::fstatfs(descriptor, &system) == 0) {
    file.in_memory = system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
    file.block_bytes =
        static_cast<uint32_t>(system.f_bsize);  // st_blksize is a preference; this is the unit of allocation
  }
  return {};
}

bool same_file(int one, int other) {
  struct stat a = {};
  struct stat b = {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// For writing, also readable where the permissions allow; `created` tells whether this call made the file.
int open_for_update(const char* path, bool& created) {
  for (int round = 0; round < kOpenRetriesMax; ++round) {
    created = false;
    int descriptor = open_retrying(path, O_RDWR | O_NONBLOCK);
    if (descriptor < 0 && errno == EACCES) descriptor = open_retrying(path, O_WRONLY | O_NONBLOCK);
    if (descriptor >= 0 || errno != ENOENT) return descriptor;
    created = true;
    descriptor = open_retrying(path, O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK, 0666);
    if (descriptor >= 0) return descriptor;
    if (errno != EEXIST) return -1;
    // A dangling symbolic link exists and names nothing: only a plain O_CREAT goes through it.
    struct stat status = {};
    if (::lstat(path, &status) == 0 && S_ISLNK(status.st_mode))
      return open_retrying(path, O_RDWR | O_CREAT | O_NONBLOCK, 0666);
  }
  errno = EEXIST;
  return -1;
}

}  // namespace

Result<OpenedFile> FileSystem::open(const std::string& path, FileMode mode) {
  OpenedFile file;
  file.path = path;
  if (Status usable = check_path("open", path); !usable) return std::unexpected(std::move(usable).error());
  int descriptor = -1;
  // O_NONBLOCK keeps the open of a FIFO without a partner from hanging; it is taken off again below.
  switch (mode) {
    case FileMode::read: descriptor = open_retrying(path.c_str(), O_RDONLY | O_NONBLOCK); break;
    case FileMode::create:
      descriptor = open_retrying(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK, 0666);
      file.created = descriptor >= 0;
      break;
    case FileMode::update:
    case FileMode::truncate: descriptor = open_for_update(path.c_str(), file.created); break;
  }
  if (descriptor < 0) {
    // ENXIO is how Linux says that a FIFO has no reader, or that the path names a socket.
    return std::unexpected(system_error("open", path, errno == ENXIO ? ESPIPE : errno));
  }
  file.descriptor = Fd(descriptor);
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK) < 0)
    return std::unexpected(system_error("open", path, errno));
  if (Status described = describe(file); !described) return std::unexpected(std::move(described).error());
  if (mode == FileMode::truncate && file.regular) {
    if (Status cut = truncate(descriptor, 0, path); !cut) return std::unexpected(std::move(cut).error());
  }
  return file;
}

Result<OpenedFile> FileSystem::duplicate(int descriptor) {
  OpenedFile file;
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0) return std::unexpected(system_error("duplicate", fmt::format("descriptor {}", descriptor), errno));
  file.path = name_of_descriptor(descriptor);
  if ((flags & O_APPEND) != 0 && (flags & O_ACCMODE) != O_RDONLY) {
    Error error = system_error("duplicate", file.path, EINVAL);
    error.code = ErrorCode::invalid_argument;
    error.detail =
        "the descriptor is open with O_APPEND, and Linux ignores the offset of a write to it; open the file without it";
    return std::unexpected(std::move(error));
  }
  file.descriptor = Fd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!file.descriptor.is_open()) return std::unexpected(system_error("duplicate", file.path, errno));
  if ((flags & O_PATH) != 0) return std::unexpected(system_error("duplicate", file.path, EBADF));
  if (Status described = describe(file); !described) return std::unexpected(std::move(described).error());
  if ((flags & (O_DIRECT | O_NONBLOCK)) != 0) {
    // Those flags belong to an open file description shared with the caller: a description of our own has neither.
    const int own = open_retrying(descriptor_link(descriptor).c_str(), flags & O_ACCMODE);
    if (own < 0) {
      Error error = system_error("duplicate", file.path, errno);
      error.detail =
          "the descriptor is open with O_DIRECT or O_NONBLOCK and could not be reopened without; pass the path instead";
      return std::unexpected(std::move(error));
    }
    file.descriptor = Fd(own);
  }
  return file;
}

Result<Fd> FileSystem::reopen_direct(const OpenedFile& file) {
  const int access = file.readable ? (file.writable ? O_RDWR : O_RDONLY) : O_WRONLY;
  int descriptor = open_retrying(descriptor_link(file.descriptor.get()).c_str(), access | O_DIRECT);
  if (descriptor < 0 && errno == ENOENT) {  // no /proc: by name, if the name still means this file
    descriptor = open_retrying(file.path.c_str(), access | O_DIRECT);
    if (descriptor >= 0 && !same_file(descriptor, file.descriptor.get())) {
      ::close(descriptor);
      descriptor = -1;
      errno = ENOENT;
    }
  }
  if (descriptor < 0) return std::unexpected(system_error("open with O_DIRECT", file.path, errno));
  return Fd(descriptor);
}

DirectAlignment FileSystem::direct_alignment(int descriptor) { return query_direct_alignment(descriptor); }

std::optional<uint64_t> FileSystem::resident_bytes(int descriptor, uint64_t offset, uint64_t length) {
  return os::resident_bytes(descriptor, offset, length);
}

Result<uint64_t> FileSystem::size_bytes(int descriptor, const std::string& path) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return std::unexpected(system_error("stat", path, errno));
  if (!S_ISBLK(status.st_mode)) return static_cast<uint64_t>(status.st_size);
  uint64_t bytes = 0;
  if (::ioctl(descriptor, BLKGETSIZE64, &bytes) != 0) return std::unexpected(system_error("stat", path, errno));
  return bytes;
}

Result<OpenedFile> FileSystem::create_exclusive(const std::string& path, uint32_t mode) {
  OpenedFile file;
  file.path = path;
  file.descriptor = Fd(open_retrying(path.c_str(), O_RDWR | O_CREAT | O_EXCL, mode));
  if (!file.descriptor.is_open()) return std::unexpected(system_error("create", path, errno));
  (void)::flock(file.descriptor.get(), LOCK_EX | LOCK_NB);  // a sweep takes no file whose owner lives
  file.created = true;
  if (Status described = describe(file); !described) return std::unexpected(std::move(described).error());
  return file;
}

Result<OpenedFile> FileSystem::create_unnamed(const std::string& folder) {
  if (Status usable = check_path("create", folder); !usable) return std::unexpected(std::move(usable).error());
  constexpr int kNameAttemptsMax = 64;
  OpenedFile file;
  file.path = folder;
  file.descriptor = Fd(open_retrying(folder.c_str(), O_RDWR | O_TMPFILE | O_EXCL, 0600));
  // EISDIR and EINVAL are how kernels and file systems answer that do not know the flag; ENOENT, so some FUSE file systems.
  int refusal = errno;
  const bool unknown_flag = refusal == EOPNOTSUPP || refusal == EISDIR || refusal == EINVAL || refusal == ENOENT;
  std::random_device random;
  for (int attempt = 0; !file.descriptor.is_open() && unknown_flag && attempt < kNameAttemptsMax; ++attempt) {
    const std::string name = fmt::format("{}/.headrace-{:08x}{:08x}{:08x}.tmp", folder, random(), random(), random());
    file.descriptor = Fd(open_retrying(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    refusal = errno;
    if (!file.descriptor.is_open() && refusal != EEXIST) break;
    if (file.descriptor.is_open() && ::unlink(name.c_str()) != 0)
      return std::unexpected(system_error("unlink", name, errno));
  }
  if (!file.descriptor.is_open()) return std::unexpected(system_error("create", folder, refusal));
  file.created = true;
  if (Status described = describe(file); !described) return std::unexpected(std::move(described).error());
  return file;
}

size_t remove_orphans(const std::string& folder, std::string_view prefix, std::string_view suffix) noexcept {
  constexpr int kEntriesMax = 100'000;
  constexpr time_t kAgeMin = 60;  // between its creation and its lock a file looks like an orphan
  DIR* const entries = ::opendir(folder.c_str());
  if (entries == nullptr) return 0;
  const int descriptor = ::dirfd(entries);
  size_t removed = 0;
  for (int i = 0; descriptor >= 0 && i < kEntriesMax; ++i) {
    const dirent* entry = ::readdir(entries);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    const Fd file(::openat(descriptor, entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status = {};
    if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (::time(nullptr) - status.st_ctime < kAgeMin || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (::unlinkat(descriptor, entry->d_name, 0) == 0) ++removed;
  }
  (void)::closedir(entries);
  return removed;
}

Status FileSystem::allocate(int descriptor, uint64_t bytes, const std::string& path) {
  if (bytes == 0) return {};
  const FileSizeSignalGuard guard;
  int rc = 0;
  do {
    rc = ::fallocate(descriptor, 0, 0, static_cast<off_t>(bytes));
  } while (rc != 0 && errno == EINTR);
  if (rc == 0) return {};
  if (errno == EOPNOTSUPP || errno == ENOSYS) return truncate(descriptor, bytes, path);
  return std::unexpected(system_error("allocate", path, errno));
}

// Not ftruncate: another writer may have made the file longer meanwhile.
void FileSystem::grow(int descriptor, uint64_t bytes, uint32_t unit_bytes) {
  if (bytes < unit_bytes || bytes > static_cast<uint64_t>(INT64_MAX)) return;
  const FileSizeSignalGuard guard;
  (void)::fallocate(descriptor, 0, static_cast<off_t>(bytes - unit_bytes), unit_bytes);
}

Status FileSystem::truncate(int descriptor, uint64_t bytes, const std::string& path) {
  const FileSizeSignalGuard guard;
  return status_of(::ftruncate(descriptor, static_cast<off_t>(bytes)), "truncate", path);
}

Status FileSystem::take_permissions(int descriptor, const std::string& old, const std::string& path) {
  struct stat was = {};
  struct stat now = {};
  if (::stat(old.c_str(), &was) != 0 || ::fstat(descriptor, &now) != 0)
    return std::unexpected(system_error("stat", path, errno));
  if (now.st_uid != was.st_uid || now.st_gid != was.st_gid) {
    constexpr auto kSameUser = static_cast<uid_t>(-1);
    // Only root can give a file away; others can give it to a group that they are in.
    if (::fchown(descriptor, was.st_uid, was.st_gid) != 0) (void)!::fchown(descriptor, kSameUser, was.st_gid);
    if (::fstat(descriptor, &now) != 0) return std::unexpected(system_error("stat", path, errno));
  }
  constexpr const char* kAcl = "system.posix_acl_access";
  std::vector<std::byte> acl(size_t{64} << 10);  // the most that an attribute has
  const ssize_t acl_bytes = ::getxattr(old.c_str(), kAcl, acl.data(), acl.size());
  const bool same_group = now.st_gid == was.st_gid;
  const bool same_acl =
      acl_bytes > 0 && same_group && ::fsetxattr(descriptor, kAcl, acl.data(), static_cast<size_t>(acl_bytes), 0) == 0;
  if (!same_acl) (void)::fremovexattr(descriptor, kAcl);  // what the folder handed down
  mode_t mode = was.st_mode & 07777;
  if (now.st_uid != was.st_uid) mode &= ~static_cast<mode_t>(S_ISUID);
  if (!same_group || (acl_bytes > 0 && !same_acl))
    mode = (mode & ~static_cast<mode_t>(S_ISGID | S_IRWXG)) | (mode & S_IRWXO) << 3;
  return status_of(::fchmod(descriptor, mode), "chmod", path);
}

Status FileSystem::datasync(int descriptor, const std::string& path) {
  return status_of(::fdatasync(descriptor), "datasync", path);
}
Status FileSystem::rename(const std::string& from, const std::string& to) {
  return status_of(::rename(from.c_str(), to.c_str()), "rename", to);
}
Status FileSystem::rename_new(const std::string& from, const std::string& to) {
  int rc = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  if (rc == 0 || (errno != EINVAL && errno != ENOSYS)) return status_of(rc, "rename", to);
  // Not every file system knows that. A second name is as good, and where there are none a look has to do.
  rc = ::link(from.c_str(), to.c_str());
  if (rc == 0) return unlink(from);
  if (errno == EEXIST) return status_of(rc, "rename", to);
  struct stat there = {};
  if (::lstat(to.c_str(), &there) == 0) return std::unexpected(system_error("rename", to, EEXIST));
  return rename(from, to);
}
Status FileSystem::unlink(const std::string& path) { return status_of(::unlink(path.c_str()), "unlink", path); }

Status FileSystem::sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const Fd descriptor(open_retrying(folder.c_str(), O_RDONLY | O_DIRECTORY));
  if (!descriptor.is_open()) return std::unexpected(system_error("sync folder", folder, errno));
  if (::fsync(descriptor.get()) == 0 || errno == EINVAL || errno == ENOTSUP)
    return {};  // some file systems have nothing to sync there
  return std::unexpected(system_error("sync folder", folder, errno));
}

uint64_t FileSystem::data_end(int descriptor, uint64_t from, uint64_t to) {
  constexpr int kPiecesMax = 100'000;
  uint64_t end = from;
  uint64_t position = from;
  for (int piece = 0; position < to; ++piece) {
    const off_t data = ::lseek(descriptor, static_cast<off_t>(position), SEEK_DATA);
    if (data < 0) return errno == ENXIO ? end : to;
    if (static_cast<uint64_t>(data) >= to) return end;
    const off_t hole = ::lseek(descriptor, data, SEEK_HOLE);
    if (hole < 0 || piece == kPiecesMax) return to;
    end = std::min(static_cast<uint64_t>(hole), to);
    position = end;
  }
  return end;
}

bool FileSystem::names(const std::string& path, int descriptor, Links links) {
  struct stat named = {};
  struct stat opened = {};
  return (links == Links::follow ? ::stat : ::lstat)(path.c_str(), &named) == 0 && ::fstat(descriptor, &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

namespace {
std::atomic<FileSystem*> other_file_system = nullptr;
}

FileSystem& file_system() noexcept {
  static FileSystem* const real = new FileSystem;  // never destroyed: transfers may outlive main()
  FileSystem* other = other_file_system.load(std::memory_order_acquire);
  return other != nullptr ? *other : *real;
}

void replace_file_system(FileSystem* other) noexcept { other_file_system.store(other, std::memory_order_release); }

}  // namespace headrace::os
