// SPDX-License-Identifier: Apache-2.0
// What the system refuses, on every engine: the right errno, path and range, and a handle that works on afterwards.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <headrace/headrace.h>

#include "tests/support/child_process.h"
#include "tests/support/files.h"
#include "tests/support/random_load.h"
#include "tests/support/stage.h"

namespace headrace {
namespace {

using namespace headrace::test;

constexpr uint64_t kMiB = uint64_t{1} << 20;
class ErrorConformance : public testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    Result<Handle> made = Handle::create({.engine = GetParam(), .workers = 2});
    if (!made) GTEST_SKIP() << made.error().message();
    handle_ = *std::move(made);
  }
  void TearDown() override {
    if (!handle_.is_open()) return;
    expect_usable(handle_);
    EXPECT_TRUE(handle_.close().has_value());
  }

  void expect_usable(Handle& handle) const {
    const std::string name = folder_.file("usable");
    const std::vector<std::byte> source = pattern(100'000);
    std::vector<std::byte> target(100'000);
    const File file = *File::open(name, FileMode::update);
    EXPECT_EQ(handle.write(file, {.source = {source.data(), source.size(), {}}})->result().value(), source.size());
    EXPECT_EQ(handle.read(file, {.target = {target.data(), target.size(), {}}})->result().value(), target.size());
    EXPECT_EQ(source, target);
  }

  // Writes so many bytes with a handle of its own, as a child process does.
  Error write_error(const File& file, uint64_t bytes, uint64_t offset = 0) {
    const std::vector<std::byte> source(bytes, std::byte{7});
    const Result<Transfer> transfer =
        handle_.write(file, {.offset_bytes = offset, .source = {source.data(), bytes, {}}});
    if (!transfer) return transfer.error();
    const Result<uint64_t> result = transfer->result();
    return result ? Error{} : result.error();
  }

  Handle handle_;
  TestFolder folder_;
};

#define SKIP_UNLESS_ROOT() \
  if (::geteuid() != 0) GTEST_SKIP() << "needs root"
#define SKIP_WITHOUT(kind) \
  if (stage(kind).folder.empty()) GTEST_SKIP() << "no " << stage_name(kind) << ": " << stage(kind).why_not

TEST_P(ErrorConformance, PathsThatCannotBeOpenedSayWhy) {
  ASSERT_EQ(::mkfifo(folder_.file("fifo").c_str(), 0600), 0);
  write_file(folder_.file("plain"), pattern(10));
  ASSERT_EQ(::symlink("loop", folder_.file("loop").c_str()), 0);
  const int listening = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_GE(listening, 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", "conformance-socket");
  (void)::unlink("conformance-socket");
  ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const auto opened = [](const std::string& path, FileMode mode) {
    const Result<File> file = File::open(path, mode);
    if (!file) {
      EXPECT_EQ(file.error().path, path);
      EXPECT_EQ(file.error().operation, "open");
    }
    return file ? 0 : file.error().errno_value;
  };
  for (const FileMode mode : {FileMode::read, FileMode::update, FileMode::truncate}) {
    EXPECT_EQ(opened(folder_.path(), mode), EISDIR);
    EXPECT_EQ(opened(folder_.file("fifo"), mode), ESPIPE);
    EXPECT_EQ(opened("conformance-socket", mode), ESPIPE);
    EXPECT_EQ(opened(folder_.file("missing/f"), mode), ENOENT);
    EXPECT_EQ(opened(folder_.file("plain/f"), mode), ENOTDIR);
    EXPECT_EQ(opened(folder_.file("loop"), mode), ELOOP);
    EXPECT_EQ(opened(folder_.file(std::string(256, 'n')), mode), ENAMETOOLONG);
    EXPECT_EQ(opened(folder_.file(std::string("a\0b", 3)), mode), EINVAL);
    EXPECT_EQ(opened("", mode), ENOENT);
  }
  EXPECT_EQ(opened(folder_.file("missing"), FileMode::read), ENOENT);
  EXPECT_EQ(opened(folder_.file("plain"), FileMode::create), EEXIST);
  EXPECT_EQ(opened(folder_.file("fifo"), FileMode::create), EEXIST);
  ::close(listening);
  (void)::unlink("conformance-socket");
}

TEST_P(ErrorConformance, OddNamesWork) {
  for (const std::string name : {"with space", "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e", "\xf0\x9f\x9a\x80",
                                 "undecodable \xff\xfe", "new\nline"}) {
    const File file = *File::open(folder_.file(name), FileMode::create);
    EXPECT_EQ(write_error(file, 10).errno_value, 0);
    EXPECT_EQ(file_bytes(folder_.file(name)), 10u);
    EXPECT_EQ(file.path(), folder_.file(name));
  }
}

TEST_P(ErrorConformance, DevFullIsFull) {
  const File file = *File::open("/dev/full", FileMode::update);
  const Error error = write_error(file, kMiB);
  EXPECT_EQ(error.errno_value, ENOSPC);
  EXPECT_EQ(error.path, "/dev/full");
  EXPECT_EQ(error.operation, "write");
  EXPECT_EQ(error.length_bytes, kMiB);
  EXPECT_EQ(error.transferred_bytes, 0u);
}

TEST_P(ErrorConformance, DevZeroAndDevNullMoveBytes) {
  std::vector<std::byte> target(kMiB, std::byte{1});
  EXPECT_EQ(
      handle_.read(*File::open("/dev/zero", FileMode::read), {.target = {target.data(), kMiB, {}}})->result().value(),
      kMiB);
  EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{0}), static_cast<std::ptrdiff_t>(kMiB));
  EXPECT_EQ(write_error(*File::open("/dev/null", FileMode::update), kMiB).errno_value, 0);
}

TEST_P(ErrorConformance, AnotherUserIsDenied) {
  SKIP_UNLESS_ROOT();
  write_file(folder_.file("secret"), pattern(100));
  ASSERT_EQ(::chmod(folder_.file("secret").c_str(), 0600), 0);
  const int status = run_in_child([&] {
    if (!become_nobody_in(folder_.path())) return 1;
    const Result<File> secret = File::open("secret", FileMode::read);
    if (secret || secret.error().errno_value != EACCES) return 2;
    const Result<File> made = File::open("new", FileMode::update);
    if (made || made.error().errno_value != EACCES) return 3;
    const Result<AtomicFile> replaced = AtomicFile::create("secret", {.size_bytes = 10});
    if (replaced || replaced.error().errno_value != EACCES) return 4;
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(folder_.file("secret")), pattern(100));
}

TEST_P(ErrorConformance, AWriteOnlyFileIsWrittenAndNotRead) {
  SKIP_UNLESS_ROOT();
  (void)handle_.close();
  write_file(folder_.file("f"), pattern(100'000));
  ASSERT_EQ(::chmod(folder_.file("f").c_str(), 0222), 0);
  const int status = run_in_child([&] {
    if (!become_nobody_in(folder_.path())) return 1;
    Result<Handle> handle = Handle::create({.engine = GetParam(), .workers = 1});
    if (!handle) return 2;
    const Result<File> file = File::open("f", FileMode::update);
    if (!file) return 3;
    std::vector<std::byte> bytes(50'000, std::byte{3});
    if (!handle->write(*file, {.offset_bytes = 10, .source = {bytes.data(), bytes.size(), {}}})->result()) return 4;
    const Result<Transfer> read = handle->read(*file, {.target = {bytes.data(), bytes.size(), {}}});
    if (read || read.error().errno_value != EBADF) return 5;
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(folder_.file("f"), 10, 50'000), std::vector<std::byte>(50'000, std::byte{3}));
}

TEST_P(ErrorConformance, AReadOnlyMountIsReadAndNotWritten) {
  SKIP_WITHOUT(StageKind::tmpfs);
  const TestFolder mounted(stage(StageKind::tmpfs).folder);
  write_file(mounted.file("f"), pattern(100'000));
  ASSERT_EQ(::mount(mounted.path().c_str(), mounted.path().c_str(), nullptr, MS_BIND, nullptr), 0);
  ASSERT_EQ(::mount(nullptr, mounted.path().c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr), 0);
  for (const FileMode mode : {FileMode::update, FileMode::truncate}) {
    EXPECT_EQ(File::open(mounted.file("f"), mode).error().errno_value, EROFS);
    EXPECT_EQ(File::open(mounted.file("new"), mode).error().errno_value, EROFS);
  }
  EXPECT_EQ(File::open(mounted.file("new"), FileMode::create).error().errno_value, EROFS);
  const Result<AtomicFile> replaced = AtomicFile::create(mounted.file("f"), {.size_bytes = 10});
  EXPECT_EQ(replaced ? 0 : replaced.error().errno_value, EROFS);
  std::vector<std::byte> target(100'000);
  EXPECT_TRUE(
      handle_.read(*File::open(mounted.file("f"), FileMode::read), {.target = {target.data(), target.size(), {}}})
          ->result()
          .has_value());
  // The kernel lets go of a request's file a moment after the request is done; nothing of ours may hold it for longer.
  int busy = ::umount(mounted.path().c_str());
  for (int i = 0; busy != 0 && errno == EBUSY && i < 500; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    busy = ::umount(mounted.path().c_str());
  }
  EXPECT_EQ(busy, 0);
}

// The limits below hold for the whole process: a child each, whose signals are at their defaults.
template <class Body>
int in_limited_child(int resource, rlim_t limit, Body body) {
  return run_in_child([&] {
    ::signal(SIGXFSZ, SIG_DFL);
    const rlimit both = {.rlim_cur = limit, .rlim_max = limit};
    return ::setrlimit(static_cast<__rlimit_resource_t>(resource), &both) != 0 ? 99 : body();
  });
}

TEST_P(ErrorConformance, TheFileSizeLimitIsAnErrorAndNoSignal) {
  (void)handle_.close();
  const int status = in_limited_child(RLIMIT_FSIZE, kMiB, [&] {
    Result<Handle> handle = Handle::create({.engine = GetParam(), .workers = 2, .block_bytes = 64 << 10});
    if (!handle) return 1;
    const std::vector<std::byte> source(3 * kMiB, std::byte{7});
    for (const uint64_t offset : {uint64_t{0}, uint64_t{123}}) {
      const File file = *File::open(folder_.file("f"), FileMode::truncate);
      const Result<uint64_t> result =
          handle->write(file, {.offset_bytes = offset, .source = {source.data(), source.size(), {}}})->result();
      if (result) return 2;
      if (result.error().errno_value != EFBIG) return 3;
      if (result.error().transferred_bytes > kMiB - offset) return 4;
      if (handle->write(file, {.source = {source.data(), 1000, {}}})->result().value_or(0) != 1000) return 5;
    }
    const Result<Transfer> replaced =
        handle->replace(folder_.file("g"), {.source = {source.data(), source.size(), {}}});
    if (replaced) return 6;
    if (replaced.error().errno_value != EFBIG) return 7;
    if (file_bytes(folder_.file("g")) != UINT64_MAX) return 8;
    // What was pending or blocked in the calling thread before is as it was.
    sigset_t pending;
    ::sigpending(&pending);
    if (::sigismember(&pending, SIGXFSZ) != 0) return 9;
    return 0;
  });
  EXPECT_EQ(status, 0) << (status > 200 ? strsignal(status - 200) : "");
}

TEST_P(ErrorConformance, TheDescriptorLimitIsAnError) {
  (void)handle_.close();
  write_file(folder_.file("f"), pattern(kMiB));
  const int status = run_in_child([&] {
    Result<Handle> handle = Handle::create({.engine = GetParam(), .workers = 1});
    if (!handle) return 1;
    const File file = *File::open(folder_.file("f"), FileMode::read);
    std::vector<os::Fd> taken;
    const rlimit both = {.rlim_cur = 256, .rlim_max = 256};
    if (::setrlimit(RLIMIT_NOFILE, &both) != 0) return 2;
    while (true) {
      os::Fd one(::open("/dev/null", O_RDONLY));
      if (!one.is_open()) break;
      taken.push_back(std::move(one));
    }
    const Result<File> refused = File::open(folder_.file("f"), FileMode::read);
    if (refused || refused.error().errno_value != EMFILE) return 3;
    const Result<AtomicFile> replaced = AtomicFile::create(folder_.file("f"), {.size_bytes = 10});
    if (replaced || replaced.error().errno_value != EMFILE) return 4;
    // The file is open already; what cannot be opened is only its direct descriptor.
    std::vector<std::byte> target(kMiB);
    const Transfer transfer = *handle->read(file, {.target = {target.data(), kMiB, {}}, .cache = CacheMode::bypass});
    if (transfer.result().value_or(0) != kMiB) return 5;
    if (target != pattern(kMiB)) return 6;
    if (transfer.route()->direct_bytes == 0 && transfer.route()->why.find("EMFILE") == std::string::npos) return 7;
    const Result<Handle> another = Handle::create({.engine = GetParam(), .workers = 1});
    if (!another && another.error().errno_value != EMFILE) return 8;
    taken.clear();
    if (!File::open(folder_.file("f"), FileMode::read)) return 9;
    return 0;
  });
  EXPECT_EQ(status, 0);
}

TEST_P(ErrorConformance, TheLockedMemoryLimitCostsRegistrationOnly) {
  SKIP_UNLESS_ROOT();
  (void)handle_.close();
  write_file(folder_.file("f"), pattern(8 * kMiB));
  ASSERT_EQ(::chmod(folder_.file("f").c_str(), 0666), 0);
  const int status = in_limited_child(RLIMIT_MEMLOCK, 64 << 10, [&] {
    if (!become_nobody_in(folder_.path())) return 1;
    Result<Handle> handle = Handle::create({.engine = GetParam(), .workers = 2});
    if (!handle) return 2;
    const Result<Buffer> buffer = Buffer::create(8 * kMiB);
    if (!buffer) return 3;
    const Transfer transfer =
        *handle->read(*File::open("f", FileMode::read), {.target = buffer->region(), .cache = CacheMode::bypass});
    if (transfer.result().value_or(0) != 8 * kMiB) return 4;
    if (std::memcmp(buffer->data(), pattern(8 * kMiB).data(), 8 * kMiB) != 0) return 5;
    if (transfer.route()->registered_bytes == 8 * kMiB) return 6;
    return handle->close() ? 0 : 7;
  });
  EXPECT_EQ(status, 0);
}

TEST_P(ErrorConformance, AFullFileSystemFailsWritesAndTheirFilesDoNotKeepZeros) {
  SKIP_WITHOUT(StageKind::small_ext4);
  const TestFolder full(stage(StageKind::small_ext4).folder);
  write_file(full.file("old"), pattern(100'000));
  const size_t descriptors = open_descriptors();
  for (const FileMode mode : {FileMode::update, FileMode::create, FileMode::truncate}) {
    File file = *File::open(full.file("new"), mode);
    const std::vector<std::byte> source(32 * kMiB, std::byte{7});
    const Result<uint64_t> failed = handle_.write(file, {.source = {source.data(), source.size(), {}}})->result();
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().errno_value, ENOSPC);
    EXPECT_EQ(failed.error().path, full.file("new"));
    file = File();
    const uint64_t left = file_bytes(full.file("new"));
    if (mode == FileMode::create) {
      EXPECT_EQ(left, UINT64_MAX) << "a file whose first write failed is removed";
    } else {
      EXPECT_EQ(left, failed.error().transferred_bytes == 0 ? UINT64_MAX : failed.error().transferred_bytes);
      EXPECT_EQ(read_file(full.file("new")), std::vector<std::byte>(failed.error().transferred_bytes, std::byte{7}));
    }
    (void)::unlink(full.file("new").c_str());
  }
  const std::vector<std::byte> source(32 * kMiB, std::byte{7});
  const Result<Transfer> replaced =
      handle_.replace(full.file("old"), {.source = {source.data(), source.size(), {}}, .durability = Durability::data});
  ASSERT_FALSE(replaced.has_value()) << "a full disk is known before a byte is moved";
  EXPECT_EQ(replaced.error().errno_value, ENOSPC);
  EXPECT_EQ(read_file(full.file("old")), pattern(100'000));
  EXPECT_EQ(full.entries(), 1u);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST_P(ErrorConformance, AFileCutWhileItIsReadIsAnEndOfFile) {
  Result<Handle> handle = Handle::create({.engine = GetParam(), .workers = 1, .block_bytes = 4096, .queue_depth = 1});
  ASSERT_TRUE(handle.has_value());
  int ended = 0;
  for (int round = 0; round < 40; ++round) {
    write_file(folder_.file("f"), pattern(4 * kMiB));
    std::vector<std::byte> target(4 * kMiB);
    const Transfer transfer = *handle->read(
        *File::open(folder_.file("f"), FileMode::read),
        {.target = {target.data(), target.size(), {}}, .cache = round % 2 == 0 ? CacheMode::bypass : CacheMode::use});
    ASSERT_EQ(::truncate(folder_.file("f").c_str(), 5000), 0);
    const Result<uint64_t> result = transfer.result();
    if (result) continue;
    ++ended;
    EXPECT_EQ(result.error().code, ErrorCode::end_of_file) << result.error().message();
    EXPECT_GE(result.error().transferred_bytes, 5000u);
  }
  EXPECT_GT(ended, 0);
}

TEST_P(ErrorConformance, ADeviceThatLosesItsBytesIsAnInputOutputError) {
  // A stage of its own, since it does not survive: the file below the loop device is cut.
  const Stage broken = extra_ext4(fmt::format("broken-{}", engine_name(GetParam())), 64 * kMiB);
  if (broken.folder.empty()) GTEST_SKIP() << "no ext4 on a loop device: " << broken.why_not;
  const std::string name = broken.folder + "/f";
  write_file(name, pattern(16 * kMiB));
  drop_from_cache(name);
  const File file = *File::open(name, FileMode::read);
  ASSERT_EQ(::truncate(broken.backing.c_str(), 4 * static_cast<off_t>(kMiB)), 0);
  drop_from_cache(name);
  std::vector<std::byte> target(16 * kMiB);
  for (const CacheMode cache : {CacheMode::bypass, CacheMode::use}) {
    const Result<uint64_t> failed =
        handle_.read(file, {.target = {target.data(), target.size(), {}}, .cache = cache})->result();
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().errno_value, EIO) << failed.error().message();
    EXPECT_EQ(failed.error().path, name);
    const uint64_t moved = failed.error().transferred_bytes;
    EXPECT_LT(moved, 16 * kMiB);
    EXPECT_EQ(std::vector<std::byte>(target.begin(), target.begin() + static_cast<std::ptrdiff_t>(moved)),
              pattern(moved));
  }
}

TEST_P(ErrorConformance, DescriptorsOfEveryKindWorkOrAreRefusedByErrno) {
  write_file(folder_.file("f"), pattern(100'000));
  const auto refused = [](int descriptor) {
    const Result<File> file = File::from_descriptor(descriptor);
    return file ? 0 : file.error().errno_value;
  };
  std::array<int, 2> ends = {};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const os::Fd folder(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY));
  const os::Fd path_only(::open(folder_.file("f").c_str(), O_PATH));
  EXPECT_EQ(refused(-1), EBADF);
  EXPECT_EQ(refused(1 << 20), EBADF);
  EXPECT_EQ(refused(ends[0]), ESPIPE);
  EXPECT_EQ(refused(folder.get()), EISDIR);
  EXPECT_EQ(refused(path_only.get()), EBADF);
  ::close(ends[0]);
  ::close(ends[1]);
  std::vector<std::byte> target(5'000);
  // With O_DIRECT, odd ranges work all the same; without a name, too.
  const os::Fd direct(::open(folder_.file("f").c_str(), O_RDONLY | O_DIRECT));
  const os::Fd nameless(::open(folder_.file("f").c_str(), O_RDWR));
  const os::Fd in_memory(::memfd_create("f", 0));
  ASSERT_EQ(::ftruncate(in_memory.get(), 100'000), 0);
  ASSERT_EQ(::unlink(folder_.file("f").c_str()), 0);
  for (const int descriptor : {direct.get(), nameless.get(), in_memory.get()}) {
    const Result<File> file = File::from_descriptor(descriptor);
    ASSERT_TRUE(file.has_value()) << file.error().message();
    const Result<uint64_t> result =
        handle_
            .read(*file,
                  {.offset_bytes = 12'345, .target = {target.data(), target.size(), {}}, .cache = CacheMode::bypass})
            ->result();
    EXPECT_EQ(result.value_or(0), 5'000u);
    EXPECT_EQ(target[17], descriptor == in_memory.get() ? std::byte{0} : pattern_at(12'345 + 17));
  }
}

TEST_P(ErrorConformance, ABlockDeviceIsAFileWithASize) {
  constexpr uint64_t kDeviceBytes = 4 * kMiB + uint64_t{3} * 512;  // its end is no multiple of a page
  const LoopDevice device("device", kDeviceBytes, 512);
  if (device.name().empty()) GTEST_SKIP() << "no loop device: " << device.why_not();
  const Result<File> file = File::open(device.name(), FileMode::update);
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_EQ(file->size_bytes().value(), kDeviceBytes);
  const std::vector<std::byte> source = pattern(kDeviceBytes);
  for (const uint64_t begin : {uint64_t{0}, uint64_t{777}, kDeviceBytes - 100}) {
    const uint64_t length = kDeviceBytes - begin;
    ASSERT_EQ(handle_
                  .write(*file, {.offset_bytes = begin,
                                 .source = {source.data() + begin, length, {}},
                                 .durability = Durability::data})
                  ->result()
                  .value(),
              length);
    std::vector<std::byte> target(length);
    ASSERT_EQ(
        handle_.read(*file, {.offset_bytes = begin, .target = {target.data(), length, {}}, .cache = CacheMode::bypass})
            ->result()
            .value(),
        length);
    EXPECT_TRUE(std::equal(target.begin(), target.end(), source.begin() + static_cast<std::ptrdiff_t>(begin)));
  }
  std::vector<std::byte> target(8192);
  const Result<uint64_t> beyond =
      handle_.read(*file, {.offset_bytes = kDeviceBytes - 100, .target = {target.data(), 8192, {}}})->result();
  ASSERT_FALSE(beyond.has_value());
  EXPECT_EQ(beyond.error().code, ErrorCode::end_of_file);
  EXPECT_EQ(beyond.error().transferred_bytes, 100u);
  EXPECT_EQ(write_error(*file, 8192, kDeviceBytes - 100).errno_value, ENOSPC);
}

TEST_P(ErrorConformance, MoreThanTwoGibibytesMoveInOneRequest) {
  constexpr uint64_t kBytes = 0x7ffff000 + uint64_t{4097};
  // Never touched: the null device takes addresses for granted.
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Result<Handle> handle = Handle::create({.engine = GetParam(), .workers = 2, .block_bytes = 1 << 30});
  ASSERT_TRUE(handle.has_value());
  const auto* data = static_cast<const std::byte*>(memory);
  EXPECT_EQ(
      handle->write(*File::open("/dev/null", FileMode::update), {.source = {data, kBytes, {}}, .copy = CopyMode::never})
          ->result()
          .value(),
      kBytes);
  // A file that is all hole but for its last bytes; only those are looked at.
  const os::Fd sparse(::open(folder_.file("sparse").c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(::ftruncate(sparse.get(), kBytes + 10), 0);
  ASSERT_EQ(::pwrite(sparse.get(), "end", 3, kBytes - 3 + 10), 3);
  std::vector<std::byte> tail(100);
  const Result<uint64_t> read =
      handle
          ->read(*File::from_descriptor(sparse.get()), {.offset_bytes = kBytes - 90, .target = {tail.data(), 100, {}}})
          ->result();
  EXPECT_EQ(read.value(), 100u);
  EXPECT_EQ(std::memcmp(tail.data() + 97, "end", 3), 0);
  ::munmap(memory, kBytes);
}

TEST_P(ErrorConformance, AHandleMayBeClosedAndDroppedInACallback) {
  write_file(folder_.file("f"), pattern(100'000));
  auto handle = std::make_shared<Handle>(*Handle::create({.engine = GetParam(), .workers = 2}));
  std::vector<std::byte> target(100'000);
  std::atomic<int> calls = 0;
  const Transfer transfer =
      *handle->read(*File::open(folder_.file("f"), FileMode::read), {.target = {target.data(), target.size(), {}}});
  transfer.on_done([&calls, handle = std::move(handle)](const Transfer& done) mutable {
    EXPECT_TRUE(done.done());
    EXPECT_TRUE(handle->close().has_value());
    handle.reset();
    ++calls;
  });
  EXPECT_TRUE(transfer.result().has_value());
  while (calls == 0)
    flush_dispatcher();
}

INSTANTIATE_TEST_SUITE_P(Engines, ErrorConformance,
                         testing::Values(EngineKind::posix, EngineKind::aio, EngineKind::uring),
                         [](const auto& engine) { return std::string(engine_name(engine.param)); });

}  // namespace
}  // namespace headrace
