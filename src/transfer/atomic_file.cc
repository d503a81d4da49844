// SPDX-License-Identifier: Apache-2.0
// Temporary name, preallocation, exact size, fdatasync, rename, fsync of the folder.
// One thread at a time creates, commits and discards.
// Owns the temporary file until it is renamed.
#include <headrace/atomic_file.h>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <mutex>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "os/error.h"
#include "os/process_id.h"
#include "transfer/open_file.h"

namespace headrace {
namespace {

constexpr int kNameAttemptsMax = 64;
constexpr std::string_view kTemporaryPrefix = ".headrace-";
constexpr std::string_view kTemporarySuffix = ".tmp";

// Short whatever the target's name, so that a name of 255 bytes still has a temporary.
std::string temporary_name(const std::string& target) {
  static std::atomic<uint64_t> counter = 0;
  std::random_device random;
  const size_t slash = target.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : target.substr(0, slash + 1);
  return fmt::format("{}{}{}-{:x}-{:08x}{}", folder, kTemporaryPrefix, ::getpid(),
                     counter.fetch_add(1, std::memory_order_relaxed), random(), kTemporarySuffix);
}

// What the path means after symbolic links: the file that the last link names, which need not exist.
Result<std::string> follow_links(const std::string& path) {
  constexpr int kLinksMax = 40;  // as in Linux
  std::string current = path;
  for (int i = 0; i < kLinksMax; ++i) {
    struct stat status = {};
    if (::lstat(current.c_str(), &status) != 0) {
      if (errno == ENOENT) return current;
      return std::unexpected(os::system_error("replace", path, errno));
    }
    if (S_ISDIR(status.st_mode)) return std::unexpected(os::system_error("replace", path, EISDIR));
    if (S_ISREG(status.st_mode)) return current;
    if (!S_ISLNK(status.st_mode)) {
      Error error = os::system_error("replace", path, EINVAL);
      error.code = ErrorCode::invalid_argument;
      error.detail = "only a regular file can be replaced, and this is a device, pipe or socket";
      return std::unexpected(std::move(error));
    }
    char target[PATH_MAX];
    const ssize_t length = ::readlink(current.c_str(), target, sizeof target);
    if (length < 0) return std::unexpected(os::system_error("replace", path, errno));
    std::string next(target, static_cast<size_t>(length));
    const bool leads_to_something = ::stat(current.c_str(), &status) == 0;
    const size_t slash = current.rfind('/');
    if (next.empty() || next[0] == '/' || slash == std::string::npos) {
      current = std::move(next);
    } else {
      current = current.substr(0, slash + 1) + next;
    }
    if (leads_to_something && ::lstat(current.c_str(), &status) != 0 && errno == ENOENT) {
      Error error = os::system_error("replace", path, EINVAL);  // a link in /proc/PID/fd
      error.code = ErrorCode::invalid_argument;
      error.detail =
          "this is an open file without a name (unlinked, or of memfd_create), and nothing can take its place";
      return std::unexpected(std::move(error));
    }
  }
  return std::unexpected(os::system_error("replace", path, ELOOP));
}

// The same name for as long as the file has it: the commit may come after a chdir.
Result<std::string> absolute(std::string path, const std::string& as_given) {
  if (path[0] == '/') return path;
  char folder[PATH_MAX];
  if (::getcwd(folder, sizeof folder) == nullptr) return std::unexpected(os::system_error("replace", as_given, errno));
  return fmt::format("{}/{}", folder, path);
}

}  // namespace

class AtomicFile::Impl {
 public:
  Impl(os::FileSystem& system, std::string path, std::string target, std::string temporary, AtomicFileOptions options)
      : system_(system),
        path_(std::move(path)),
        target_(std::move(target)),
        temporary_(std::move(temporary)),
        options_(options) {}
  ~Impl() { discard(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status prepare(os::OpenedFile opened, bool replaces) {
    opened.created = false;  // cleaning up is this object's business
    opened.path = path_;     // errors speak of the file that the caller named
    file_ = File(std::make_shared<transfer::OpenFile>(system_, std::move(opened), FileMode::update));
    transfer::OpenFile& file = *file_.internal();
    if (replaces) {
      if (Status taken = system_.take_permissions(file.descriptor(), target_, path_); !taken) return taken;
    }
    return take_space(options_.size_bytes);
  }

  Status resize(uint64_t size_bytes) {
    const std::lock_guard lock(mutex_);
    if (Status usable = check_pending("resize"); !usable) return usable;
    if (size_bytes > options_.size_bytes) {
      if (Status taken = take_space(size_bytes); !taken) {
        // What could be had of the space is in the file now.
        (void)system_.truncate(file_.internal()->descriptor(), options_.size_bytes, path_);
        return taken;
      }
    } else if (size_bytes < options_.size_bytes) {
      // Now, so that bytes that were written there do not come back when it grows again.
      if (Status cut = system_.truncate(file_.internal()->descriptor(), size_bytes, path_); !cut) return cut;
    }
    options_.size_bytes = size_bytes;
    return {};
  }

  Status commit() {
    const std::lock_guard lock(mutex_);
    if (Status usable = check_pending("commit"); !usable) return usable;
    if (file_.internal()->has_failed_write()) {
      remove();
      return std::unexpected(Error{.code = ErrorCode::aborted,
                                   .operation = "commit",
                                   .path = path_,
                                   .detail = "a write into the new file failed; the old file is untouched"});
    }
    const int descriptor = file_.internal()->descriptor();
    Status status = system_.truncate(descriptor, options_.size_bytes, path_);
    if (status && options_.durability == Durability::data) status = system_.datasync(descriptor, path_);
    if (status)
      status = options_.existing == Existing::replace ? system_.rename(temporary_, target_)
                                                      : system_.rename_new(temporary_, target_);
    if (!status) {
      status.error().path = path_;
      remove();
      return status;
    }
    pending_ = false;
    if (options_.durability != Durability::data) return {};
    Status synced = system_.sync_folder_of(target_);
    if (!synced) {
      synced.error().path = path_;
      synced.error().detail = "the new file is in place, but its name may not survive a power cut; sync the folder";
    }
    return synced;
  }

  void discard() noexcept {
    const std::lock_guard lock(mutex_);
    remove();
  }

  const File& file() const noexcept { return file_; }
  const std::string& temporary() const noexcept { return temporary_; }

 private:
  void remove() noexcept {
    if (!pending_ || process_ != os::process_id()) return;  // a forked child's copy: its parent is still writing
    pending_ = false;
    (void)system_.unlink(temporary_);
  }

  Status check_pending(const char* operation) const {
    if (!pending_)
      return std::unexpected(Error{.code = ErrorCode::invalid_argument,
                                   .operation = operation,
                                   .path = path_,
                                   .detail = "committed or discarded before"});
    if (process_ != os::process_id()) {
      return std::unexpected(Error{.code = ErrorCode::closed,
                                   .operation = operation,
                                   .path = path_,
                                   .detail = "the new file belongs to the process that forked this one"});
    }
    return {};
  }

  Status take_space(uint64_t bytes) {
    Status allocated = system_.allocate(file_.internal()->descriptor(), bytes, path_);
    if (!allocated && allocated.error().errno_value == ENOSPC) {
      allocated.error().detail = fmt::format("{} bytes were asked for; {}", bytes, os::remedy(ENOSPC));
    }
    return allocated;
  }

  os::FileSystem& system_;
  std::string path_;
  std::string target_;
  std::string temporary_;
  AtomicFileOptions options_;
  File file_;
  const pid_t process_ = os::process_id();
  std::mutex mutex_;     // held while the temporary file is cut, grown, renamed or removed
  bool pending_ = true;  // the temporary name exists
};

Result<AtomicFile> AtomicFile::create(const std::string& path, const AtomicFileOptions& options) {
  if (Status usable = os::check_path("replace", path); !usable) return std::unexpected(std::move(usable).error());
  os::FileSystem& system = os::file_system();
  Result<std::string> target = follow_links(path);
  if (target && !target->empty()) target = absolute(*std::move(target), path);
  if (!target) return std::unexpected(std::move(target).error());
  const size_t slash = target->rfind('/');
  if (slash == target->size() - 1) return std::unexpected(os::system_error("replace", path, EISDIR));
  if (target->size() - (slash == std::string::npos ? 0 : slash + 1) > NAME_MAX)
    return std::unexpected(os::system_error("replace", path, ENAMETOOLONG));
  for (int attempt = 0; attempt < kNameAttemptsMax; ++attempt) {
    struct stat old = {};
    const bool replaces = ::stat(target->c_str(), &old) == 0;
    const uint32_t mode = replaces ? 0600 : 0666;  // a replaced file may be somebody's secret
    std::string temporary = temporary_name(*target);
    Result<os::OpenedFile> opened = system.create_exclusive(temporary, mode);
    if (!opened && opened.error().errno_value == EEXIST) continue;
    if (!opened) {
      Error error = std::move(opened).error();
      error.operation = "replace";
      error.path = path;
      return std::unexpected(std::move(error));
    }
    auto impl = std::make_unique<Impl>(system, path, *target, std::move(temporary), options);
    if (Status prepared = impl->prepare(*std::move(opened), replaces); !prepared) {
      if (replaces && prepared.error().errno_value == ENOENT) continue;  // somebody removed the old file just now
      return std::unexpected(std::move(prepared).error());
    }
    return AtomicFile(std::move(impl));
  }
  return std::unexpected(os::system_error("replace", path, EEXIST));
}

size_t sweep_temporaries_beside(const std::string& path) noexcept {
  const Result<std::string> target = follow_links(path);
  if (!target) return 0;
  const size_t slash = target->rfind('/');
  const std::string folder = slash == std::string::npos ? "." : target->substr(0, slash + 1);
  return os::remove_orphans(folder, kTemporaryPrefix, kTemporarySuffix);
}

AtomicFile::AtomicFile(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

const File& AtomicFile::file() const noexcept { return impl_->file(); }
const std::string& AtomicFile::temporary_path() const noexcept { return impl_->temporary(); }
Status AtomicFile::resize(uint64_t size_bytes) { return impl_->resize(size_bytes); }
Status AtomicFile::commit() { return impl_->commit(); }
void AtomicFile::discard() noexcept {
  if (impl_) impl_->discard();  // null once moved from
}

}  // namespace headrace
