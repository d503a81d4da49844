// SPDX-License-Identifier: Apache-2.0
// O_TMPFILE, else create, open everything that is needed, unlink.
// One thread.
// See the header for ownership.
#include "diagnose/trial_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "diagnose/report_system.h"
#include "os/error.h"
#include "os/file_system.h"
#include "transfer/open_file.h"

namespace headrace::diagnose {
namespace {

constexpr int kNameAttemptsMax = 16;

// Takes the name away when it goes.
struct Name {
  std::string path;
  Name() = default;
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;
  ~Name() {
    if (!path.empty()) (void)os::file_system().unlink(path);
  }
};

// The prefix and suffix are AtomicFile's, so that its sweep also finds what a kill between two lines here leaves.
Result<std::string> unguessable_name(const std::string& folder) {
  std::array<uint64_t, 2> random = {};
  if (::getrandom(random.data(), sizeof random, 0) != ssize_t{sizeof random})
    return std::unexpected(os::system_error("getrandom", folder, errno));
  return fmt::format("{}/.headrace-report-{:016x}{:016x}.tmp", folder, random[0], random[1]);
}

Result<os::Fd> create_named(const std::string& folder, Name& name) {
  for (int attempt = 0;; ++attempt) {
    Result<std::string> path = unguessable_name(folder);
    if (!path) return std::unexpected(std::move(path).error());
    Result<os::OpenedFile> made = os::file_system().create_exclusive(*path, 0600);
    if (made) {
      name.path = *std::move(path);
      return std::move(made->descriptor);
    }
    if (made.error().errno_value == EEXIST && attempt < kNameAttemptsMax) continue;
    Error error = std::move(made).error();
    error.path = folder;
    if (error.errno_value == EROFS)
      error.detail = "the file system is mounted read-only; mount it writable, or name another folder";
    if (error.errno_value == EACCES || error.errno_value == EPERM)
      error.detail = "this user may not make files here; name a folder of yours, or change its permissions";
    return std::unexpected(std::move(error));
  }
}

Result<os::Fd> create_file(const std::string& folder, Name& name) {
#ifdef O_TMPFILE
  int descriptor = -1;
  do {
    descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  } while (descriptor < 0 && errno == EINTR);
  // Whether the file can be opened again without a name: some file systems of user space cannot.
  os::Fd file(descriptor);
  if (file.is_open()) {
    const os::Fd again(::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_RDWR | O_CLOEXEC));
    if (again.is_open()) return file;
  }
#endif
  return create_named(folder, name);  // whose error is the one that people know
}

}  // namespace

Result<TrialFile> TrialFile::create(const std::string& folder, uint64_t bytes, size_t file_count) {
  Name name;
  Result<os::Fd> made = create_file(folder, name);
  if (!made) return std::unexpected(std::move(made).error());
  TrialFile trial;
  trial.descriptor_ = *std::move(made);
  os::FileSystem& system = os::file_system();
  if (Status taken = system.allocate(trial.descriptor_.get(), bytes, folder); !taken) {
    Error error = std::move(taken).error();
    error.detail = fmt::format("trying the engines takes {}; {}", limit_text(bytes),
                               error.errno_value == ENOSPC ? "free some, or name another folder" : error.detail);
    return std::unexpected(std::move(error));
  }
  for (size_t i = 0; i < file_count; ++i) {
    Result<os::OpenedFile> opened = system.duplicate(trial.descriptor_.get());
    if (!opened) return std::unexpected(std::move(opened).error());
    if (!name.path.empty())
      opened->path = name.path;  // by which the direct descriptor is opened where /proc is missing
    File file(std::make_shared<transfer::OpenFile>(system, *std::move(opened), FileMode::update));
    (void)file.direct_offset_alignment_bytes();  // opens it while the file has its name
    trial.files_.push_back(std::move(file));
  }
  return trial;
}

}  // namespace headrace::diagnose
