// SPDX-License-Identifier: Apache-2.0
// Room asked for, nameless files made, existing ones opened with care, patterns written.
// One thread at a time.
// Every file is closed, and so gone, when the last owner lets go.
#include "diagnose/bench_files.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/units.h"
#include "diagnose/bench_machine.h"
#include "diagnose/bench_pattern.h"
#include "os/error.h"
#include "os/fd.h"
#include "os/file_system.h"
#include "transfer/open_file.h"

namespace headrace {
namespace {

constexpr uint64_t kReserveBytesMax =
    base::kGiB;  // stays free beside the files, or 5 % of the file system, if that is less
constexpr uint64_t kReserveShare = 20;
constexpr uint64_t kFillPieceBytes = 32 * base::kMiB;
constexpr uint64_t kTouchPieceBytes = 8 * base::kMiB;
constexpr const char* kOperation = "benchmark";

Error refused(const std::string& path, std::string detail) {
  return {.code = ErrorCode::invalid_argument, .operation = kOperation, .path = path, .detail = std::move(detail)};
}

Error told(Error error) {
  error.operation = kOperation;
  return error;
}

}  // namespace

// Of one file system, what all folders on it need together.
Status diagnose::check_room(const std::vector<std::string>& folders, uint64_t bytes_per_folder) {
  std::map<dev_t, uint64_t> wanted_bytes;
  for (const std::string& folder : folders) {
    if (Status usable = os::check_path(kOperation, folder); !usable) return usable;
    struct stat status = {};
    struct statvfs space = {};
    if (::stat(folder.c_str(), &status) != 0) return std::unexpected(os::system_error(kOperation, folder, errno));
    if (!S_ISDIR(status.st_mode))
      return std::unexpected(refused(folder, "this is not a folder; a benchmark makes files of its own in one"));
    if (::statvfs(folder.c_str(), &space) != 0) return std::unexpected(os::system_error(kOperation, folder, errno));
    const uint64_t unit = space.f_frsize;
    const uint64_t reserve = std::min(space.f_blocks * unit / kReserveShare, kReserveBytesMax);
    const uint64_t free = space.f_bavail * unit;
    uint64_t& wanted = wanted_bytes[status.st_dev];
    wanted += bytes_per_folder;
    // A file system that does not know its size says that it has none; the files themselves will tell.
    if (space.f_blocks == 0 || (free >= reserve && wanted <= free - reserve)) continue;
    Error error = os::system_error(kOperation, folder, ENOSPC);
    error.detail = fmt::format(
        "{} bytes are wanted and {} are free, of which {} are left alone; free space, ask for less, or name another "
        "folder",
        wanted, free, reserve);
    return std::unexpected(std::move(error));
  }
  return {};
}

namespace {

std::string what_it_is(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "neither a regular file nor a block device";
}

// Before and after it is opened: a path may come to mean something else in between.
Status check_kind(const std::string& path, const struct stat& status, BlockDevice block_device) {
  if (S_ISREG(status.st_mode)) return {};
  if (!S_ISBLK(status.st_mode))
    return std::unexpected(refused(path, "this is " + what_it_is(status.st_mode) + "; name a file"));
  if (block_device == BlockDevice::may_be_read) return {};
  return std::unexpected(refused(path, "this is a block device, and nobody said that it may be read"));
}

}  // namespace

Result<std::shared_ptr<BenchmarkFiles::Impl>> BenchmarkFiles::Impl::create(const BenchmarkFilesOptions& options) {
  const uint64_t count = uint64_t{options.folders.size()} * options.files_per_folder;
  if (count == 0 || count > kBenchmarkFilesMax) {
    return std::unexpected(
        refused({}, fmt::format("{} folders with {} files each; allowed: 1 to {} files", options.folders.size(),
                                options.files_per_folder, kBenchmarkFilesMax)));
  }
  if (options.file_bytes == 0 || options.file_bytes > static_cast<uint64_t>(INT64_MAX) / count)
    return std::unexpected(
        refused({}, fmt::format("a file of {} bytes; allowed: 1 byte to what a disk holds", options.file_bytes)));
  if (Status room = diagnose::check_room(options.folders, options.file_bytes * options.files_per_folder); !room)
    return std::unexpected(std::move(room).error());
  auto files = std::make_shared<Impl>(Origin::own, options.file_bytes);
  for (uint32_t i = 0; i < count; ++i) {
    if (Status added = files->add_own(options.folders[i % options.folders.size()]); !added)
      return std::unexpected(std::move(added).error());
  }
  for (size_t i = 0; i < options.folders.size(); ++i)
    files->places_.push_back(diagnose::describe_place(options.folders[i], files->descriptor(static_cast<uint32_t>(i))));
  return files;
}

Status BenchmarkFiles::Impl::add_own(const std::string& folder) {
  os::FileSystem& system = os::file_system();
  Result<os::OpenedFile> opened = system.create_unnamed(folder);
  if (!opened) return std::unexpected(told(std::move(opened).error()));
  if (Status allocated = system.allocate(opened->descriptor.get(), file_bytes_, folder); !allocated)
    return std::unexpected(told(std::move(allocated).error()));
  opened->created = false;  // there is no name to clean up
  entries_.push_back({.file = File(std::make_shared<transfer::OpenFile>(system, *std::move(opened), FileMode::update)),
                      .content = {}});
  return {};
}

Result<std::shared_ptr<BenchmarkFiles::Impl>> BenchmarkFiles::Impl::open_existing(std::span<const std::string> paths,
                                                                                  BlockDevice block_device) {
  if (paths.empty() || paths.size() > kBenchmarkFilesMax)
    return std::unexpected(refused({}, fmt::format("{} files; allowed: 1 to {}", paths.size(), kBenchmarkFilesMax)));
  auto files = std::make_shared<Impl>(Origin::existing, UINT64_MAX);
  for (const std::string& path : paths) {
    if (Status usable = os::check_path(kOperation, path); !usable) return std::unexpected(std::move(usable).error());
    struct stat status = {};
    if (::stat(path.c_str(), &status) != 0) return std::unexpected(os::system_error(kOperation, path, errno));
    if (Status kind = check_kind(path, status, block_device); !kind) return std::unexpected(std::move(kind).error());
    Result<File> file = File::open(path, FileMode::read);
    if (!file) return std::unexpected(told(std::move(file).error()));
    const int descriptor = file->internal()->descriptor();
    if (::fstat(descriptor, &status) != 0) return std::unexpected(os::system_error(kOperation, path, errno));
    if (Status kind = check_kind(path, status, block_device); !kind) return std::unexpected(std::move(kind).error());
    const Result<uint64_t> bytes = file->size_bytes();
    if (!bytes) return std::unexpected(told(bytes.error()));
    if (*bytes == 0) return std::unexpected(refused(path, "the file is empty: there is nothing to read"));
    files->file_bytes_ = std::min(files->file_bytes_, *bytes);
    files->places_.push_back(diagnose::describe_place(path, descriptor));
    files->entries_.push_back({.file = *std::move(file), .content = {}});
  }
  return files;
}

int BenchmarkFiles::Impl::descriptor(uint32_t index) const { return entries_[index].file.internal()->descriptor(); }

uint64_t BenchmarkFiles::Impl::missing_bytes(uint32_t index, uint64_t bytes, Need need) const {
  const Content& content = entries_[index].content;
  const bool there = content.bytes >= bytes && (need == Need::any_bytes || content.key);
  return origin_ == Origin::existing || there ? 0 : bytes;
}

// While one half of the memory is written, the next piece is made in the other.
Status BenchmarkFiles::Impl::fill(uint32_t index, uint64_t bytes, Need need, diagnose::ProgressMeter& meter) {
  if (missing_bytes(index, bytes, need) == 0) return {};
  Result<Handle> handle = Handle::create();
  if (!handle) return std::unexpected(told(std::move(handle).error()));
  Result<Buffer> memory = Buffer::create(2 * kFillPieceBytes);
  if (!memory) return std::unexpected(told(std::move(memory).error()));
  const uint64_t key = diagnose::random_key();
  begin_write(index);
  std::array<Transfer, 2> under_way;
  Status status;
  for (uint64_t offset = 0, piece = 0; status && offset < bytes; offset += kFillPieceBytes, ++piece) {
    const size_t half = piece % 2;
    const std::span<std::byte> part(memory->data() + half * kFillPieceBytes, std::min(kFillPieceBytes, bytes - offset));
    if (piece >= 2) {
      if (Result<uint64_t> done = under_way[half].result(); !done) status = std::unexpected(std::move(done).error());
    }
    if (status && meter.tick("filling the files")) status = std::unexpected(diagnose::interrupted());
    if (!status) break;
    diagnose::fill_pattern(part, key, offset);
    Result<Transfer> sent =
        handle->write(entries_[index].file,
                      {.offset_bytes = offset, .source = {.data = part.data(), .bytes = part.size(), .device = {}}});
    if (!sent) {
      status = std::unexpected(std::move(sent).error());
      break;
    }
    under_way[half] = *std::move(sent);
    count_written(part.size());
    meter.add(part.size());
  }
  // Also after a failure: the memory is in use before.
  for (const Transfer& transfer : under_way) {
    if (transfer.internal() == nullptr) continue;
    if (Result<uint64_t> done = transfer.result(); status && !done) status = std::unexpected(std::move(done).error());
  }
  if (status) status = os::file_system().datasync(descriptor(index), entries_[index].file.path());
  if (!status) return std::unexpected(told(std::move(status).error()));
  end_write(index, {.bytes = bytes, .key = key});
  return {};
}

Result<Buffer> BenchmarkFiles::Impl::memory(uint64_t bytes, PageKind pages, diagnose::ProgressMeter& meter) {
  if (memory_.bytes() >= bytes && memory_pages_ == pages) return memory_;
  memory_ = {};  // first, so that the two need not fit together
  // Touching more than there is would not fail but have the kernel end some process.
  const std::optional<uint64_t> available = diagnose::available_memory_bytes();
  if (available && bytes > *available / 4 * 3) {
    Error error = os::system_error(kOperation, {}, ENOMEM);
    error.detail = fmt::format("{} bytes of memory are wanted and {} are available; ask for less", bytes, *available);
    return std::unexpected(std::move(error));
  }
  Result<Buffer> made = Buffer::create(bytes, {.pages = pages});
  if (!made) return std::unexpected(told(std::move(made).error()));
  // A fork, as to run fio, would have the kernel split the huge pages of memory that is registered, for all repeats to come.
  if (made->bytes() != 0) (void)::madvise(made->data(), made->bytes(), MADV_DONTFORK);
  const uint64_t key = diagnose::random_key();
  // A virtual machine may have to ask its host for each page: minutes, for much memory.
  for (uint64_t offset = 0; offset < made->bytes(); offset += kTouchPieceBytes) {
    if (meter.tick("preparing memory")) return std::unexpected(diagnose::interrupted());
    const std::span part(made->data() + offset, std::min(kTouchPieceBytes, made->bytes() - offset));
    diagnose::fill_pattern(part, key, offset);
  }
  memory_ = *made;
  memory_pages_ = pages;
  return made;
}

BenchmarkFiles::BenchmarkFiles(std::shared_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
BenchmarkFiles::BenchmarkFiles(BenchmarkFiles&&) noexcept = default;
BenchmarkFiles& BenchmarkFiles::operator=(BenchmarkFiles&&) noexcept = default;
BenchmarkFiles::~BenchmarkFiles() = default;

Result<BenchmarkFiles> BenchmarkFiles::create(const BenchmarkFilesOptions& options) {
  Result<std::shared_ptr<Impl>> impl = Impl::create(options);
  if (!impl) return std::unexpected(std::move(impl).error());
  return BenchmarkFiles(*std::move(impl));
}

Result<BenchmarkFiles> BenchmarkFiles::open_existing(std::span<const std::string> paths, BlockDevice block_device) {
  Result<std::shared_ptr<Impl>> impl = Impl::open_existing(paths, block_device);
  if (!impl) return std::unexpected(std::move(impl).error());
  return BenchmarkFiles(*std::move(impl));
}

uint32_t BenchmarkFiles::count() const noexcept { return impl_->count(); }
uint64_t BenchmarkFiles::file_bytes() const noexcept { return impl_->file_bytes(); }
bool BenchmarkFiles::existing() const noexcept { return impl_->origin() == Impl::Origin::existing; }
uint64_t BenchmarkFiles::written_bytes() const noexcept { return impl_->written_bytes(); }
const std::vector<BenchmarkPlace>& BenchmarkFiles::places() const noexcept { return impl_->places(); }

std::string BenchmarkFiles::path_for_others(uint32_t index) const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), impl_->descriptor(index));
}

void BenchmarkFiles::written_by_others(uint64_t bytes) {
  for (uint32_t i = 0; i < impl_->count(); ++i)
    impl_->end_write(i, {.bytes = impl_->content(i).bytes, .key = std::nullopt});
  impl_->count_written(bytes);
}

}  // namespace headrace
