// SPDX-License-Identifier: Apache-2.0
// Runs a piece of a test in a forked child, where limits, users and seccomp filters harm nobody else.
// Call it from a process without other threads.
// The child owns a copy of everything and leaves by _exit.
#pragma once

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer ends a forked child that starts threads, unless told otherwise. And it does not see liburing unmap a
// ring (by system calls of its own), so that the next ring at the same address looks shared with the last one's thread.
extern "C" __attribute__((weak, used, visibility("default"))) const char* __tsan_default_options();
const char* __tsan_default_options() { return "die_after_fork=0"; }
extern "C" __attribute__((weak, used, visibility("default"))) const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() { return "race:/liburing.h\nrace:/liburing/barrier.h\n"; }
inline constexpr bool kThreadsMayStartAfterFork = false;  // while the parent has threads: their identities collide
#else
inline constexpr bool kThreadsMayStartAfterFork = true;
#endif

namespace headrace::test {

// Returns the exit status of the child, which is what `body` returns; 200 + signal when a signal ended it.
template <class Body>
int run_in_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const int status = body();
    std::fflush(nullptr);
    ::_exit(status);
  }
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

// In a child: an ordinary user whose current folder this is. What lies above it, such as /root, may be closed to others.
inline bool become_nobody_in(const std::string& folder) {
  constexpr uid_t kNobody = 65534;
  return ::chdir(folder.c_str()) == 0 && ::setresgid(kNobody, kNobody, kNobody) == 0 &&
         ::setresuid(kNobody, kNobody, kNobody) == 0;
}

struct Denial {
  long system_call = 0;
  int errno_value = 0;
  uint32_t argument = 0;  // which argument is compared
  uint32_t at_least = 0;  // denied when its low 32 bits are at least this
};

// For the rest of this process (and its threads made later) the system call fails. False when filters cannot be had.
inline bool deny_system_call(const Denial& denial) {
  const auto number = static_cast<uint32_t>(denial.system_call);
  const uint32_t argument_offset = static_cast<uint32_t>(offsetof(seccomp_data, args)) + 8 * denial.argument;
  const uint32_t refuse = SECCOMP_RET_ERRNO | static_cast<uint32_t>(denial.errno_value);
  std::array filter = {
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 3, number},
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, argument_offset},
      sock_filter{BPF_JMP | BPF_JGE | BPF_K, 0, 1, denial.at_least},
      sock_filter{BPF_RET | BPF_K, 0, 0, refuse},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program = {.len = static_cast<unsigned short>(filter.size()), .filter = filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

}  // namespace headrace::test
