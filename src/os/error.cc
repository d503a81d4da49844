// SPDX-License-Identifier: Apache-2.0
// The remedies, one sentence each.
// Any thread.
// Owns nothing.
#include "os/error.h"

#include <cerrno>
#include <utility>

namespace headrace::os {

Error system_error(std::string_view operation, std::string_view path, int errno_value) {
  Error error;
  error.code = ErrorCode::system;
  error.errno_value = errno_value;
  error.operation = operation;
  error.path = path;
  error.detail = remedy(errno_value);
  return error;
}

Status check_path(std::string_view operation, std::string_view path) {
  const bool holds_zero = path.find('\0') != std::string_view::npos;
  if (!path.empty() && !holds_zero) return {};
  Error error = system_error(operation, path, holds_zero ? EINVAL : ENOENT);
  error.detail = holds_zero ? "the path holds a zero byte" : "the path is empty";
  return std::unexpected(std::move(error));
}

std::string_view remedy(int errno_value) noexcept {
  switch (errno_value) {
    case ENOENT: return "check the path and that its folder exists";
    case EACCES:
    case EPERM: return "check the permissions of the file and its folders";
    case EISDIR: return "name a file, not a folder";
    case ENOTDIR: return "a folder in the path is a file";
    case EEXIST: return "the file exists and mode 'create' never replaces one; use 'update', 'truncate' or 'replace'";
    case ENOSPC: return "free space on the device, or write less";
    case EDQUOT: return "the disk quota is used up";
    case EFBIG: return "the file would pass the size limit (ulimit -f, or the file system's own)";
    case EROFS: return "the file system is mounted read-only";
    case EMFILE: return "too many open files in this process (ulimit -n)";
    case ENFILE: return "too many open files in the system (fs.file-max)";
    case EIO: return "the device reported a failure (see the kernel log), or overlapping writes ran at the same time";
    case ESPIPE: return "pipes, sockets and terminals have no offsets; name a regular file or a block device";
    case EBADF: return "the descriptor is closed or not open for this direction";
    case ENAMETOOLONG: return "the path or one of its names is too long for the file system";
    case ELOOP: return "too many symbolic links";
    case EFAULT: return "the memory named is not mapped, or not writable";
    case ENOMEM: return "out of memory";
    case EAGAIN: return "the kernel was short of resources and stayed so; lower the queue depth, or try again later";
    case EINVAL: return "the system does not take this file, offset or length; direct='never' may help";
    case ETXTBSY: return "the file is a program that is running";
    default: return {};
  }
}

}  // namespace headrace::os
