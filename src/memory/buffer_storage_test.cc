// SPDX-License-Identifier: Apache-2.0
// Buffers: what was got, finding them by address, and who is told when they die.
#include "memory/buffer_storage.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "os/direct_io.h"
#include "tests/support/child_process.h"

namespace headrace::memory {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(Buffer, IsZeroAlignedAndWritable) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4095}, uint64_t{4097}, 5 * kMiB + 3}) {
    for (const PageKind pages : {PageKind::transparent, PageKind::small}) {
      const Buffer buffer = *Buffer::create(bytes, {.pages = pages});
      EXPECT_EQ(buffer.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % os::kHugePageBytes, 0u);
      EXPECT_TRUE(buffer.pages() == pages || buffer.pages() == PageKind::small);
      for (uint64_t i = 0; i < bytes; ++i)
        ASSERT_EQ(buffer.data()[i], std::byte{0});
      std::memset(buffer.data(), 1, bytes);
      EXPECT_LE(buffer.huge_bytes(), (bytes + os::kHugePageBytes - 1) / os::kHugePageBytes * os::kHugePageBytes);
    }
  }
}

TEST(Buffer, OfNothingIsNothing) {
  const Buffer empty = *Buffer::create(0);
  EXPECT_EQ(empty.bytes(), 0u);
  EXPECT_FALSE(Buffer().locked());
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer().huge_bytes(), 0u);
}

TEST(Buffer, TooLargeIsAnErrorThatNamesTheSize) {
  for (const uint64_t bytes : {uint64_t{1} << 48, uint64_t{1} << 63, UINT64_MAX}) {
    const Result<Buffer> refused = Buffer::create(bytes);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().errno_value, ENOMEM);
    EXPECT_NE(refused.error().detail.find(std::to_string(bytes)), std::string::npos);
  }
}

TEST(Buffer, IsFoundByAnyRangeInsideItAndByNoOther) {
  const Buffer buffer = *Buffer::create(kMiB);
  const auto storage = find_buffer(buffer.data(), 1);
  ASSERT_NE(storage, nullptr);
  EXPECT_EQ(find_buffer(buffer.data() + 1000, kMiB - 1000), storage);
  EXPECT_EQ(find_buffer(buffer.data(), kMiB), storage);
  EXPECT_EQ(find_buffer(buffer.data(), storage->mapped_bytes() + 1), nullptr);
  EXPECT_EQ(find_buffer(buffer.data() - 1, 2), nullptr);
  EXPECT_EQ(find_buffer(buffer.data() + 1, UINT64_MAX), nullptr);
  const int local = 0;
  EXPECT_EQ(find_buffer(&local, 1), nullptr);
}

TEST(Buffer, AtTheSameAddressAgainHasAnotherId) {
  uint64_t before = 0;
  for (int round = 0; round < 10; ++round) {
    const Buffer buffer = *Buffer::create(kMiB);
    const uint64_t id = find_buffer(buffer.data(), 1)->id();
    EXPECT_NE(id, before);
    before = id;
  }
}

TEST(Buffer, SearchesWhileOthersDieNeitherHangNorFindTheDead) {
  std::atomic<bool> running = true;
  std::atomic<std::byte*> address = nullptr;
  std::thread searcher([&] {
    while (running) {
      // Too long for the buffer: found, held for a moment, and let go.
      (void)find_buffer(address, os::kHugePageBytes * 4);
      (void)find_buffer(address, 1);
    }
  });
  for (int round = 0; round < 3000; ++round) {
    const Buffer buffer = *Buffer::create(4096);
    address = buffer.data();
  }
  running = false;
  searcher.join();
}

TEST(Buffer, TellsEachWatcherOnceWhenItDies) {
  struct Watcher : BufferWatcher {
    void buffer_gone(uint64_t buffer_id) noexcept override {
      id = buffer_id;
      ++times;
    }
    uint64_t id = 0;
    int times = 0;
  };
  const auto watcher = std::make_shared<Watcher>();
  auto gone = std::make_shared<Watcher>();
  uint64_t id = 0;
  {
    const Buffer buffer = *Buffer::create(4096);
    const auto storage = find_buffer(buffer.data(), 1);
    id = storage->id();
    storage->watch(watcher);
    storage->watch(watcher);
    storage->watch(gone);
    gone.reset();
    const Buffer copy = buffer;
  }
  EXPECT_EQ(watcher->times, 1);
  EXPECT_EQ(watcher->id, id);
}

TEST(Buffer, AChildFindsOnlyItsOwn) {
  Buffer buffer = *Buffer::create(kMiB);
  std::memset(buffer.data(), 7, kMiB);
  const int status = test::run_in_child([&] {
    if (find_buffer(buffer.data(), 1) != nullptr) return 1;
    if (buffer.data()[kMiB - 1] != std::byte{7}) return 2;
    const Buffer own = *Buffer::create(kMiB);
    if (find_buffer(own.data(), 1) == nullptr) return 3;
    buffer = Buffer();
    return find_buffer(own.data(), kMiB) == nullptr ? 4 : 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_NE(find_buffer(buffer.data(), 1), nullptr);
}

TEST(Buffer, LockedSaysWhatWasGot) {
  const Buffer never = *Buffer::create(kMiB, {.lock = BufferOptions::Lock::never});
  EXPECT_FALSE(never.locked());
  EXPECT_FALSE(Buffer::is_locked(never.data(), 10));
  const Buffer locked = *Buffer::create(kMiB);
  EXPECT_EQ(Buffer::is_locked(locked.data() + 5, 100), locked.locked());
}

}  // namespace
}  // namespace headrace::memory
