// SPDX-License-Identifier: Apache-2.0
// MADV_WIPEONFORK (Linux 4.14); where it is refused, the system call.
// Any thread.
// See the header for ownership.
#include "os/process_id.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "os/direct_io.h"

namespace headrace::os {
namespace {

// Zero in a child until it asks for the first time; null where the kernel cannot wipe.
std::atomic<pid_t>* wiped_word() noexcept {
  void* page = ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, page_bytes(), MADV_WIPEONFORK) != 0) {
    ::munmap(page, page_bytes());
    return nullptr;
  }
  return new (page) std::atomic<pid_t>(0);
}

}  // namespace

pid_t process_id() noexcept {
  static std::atomic<pid_t>* const word = wiped_word();
  if (word == nullptr) return ::getpid();
  pid_t process = word->load(std::memory_order_relaxed);
  if (process == 0) {
    process = ::getpid();
    word->store(process, std::memory_order_relaxed);
  }
  return process;
}

}  // namespace headrace::os
