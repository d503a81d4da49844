// SPDX-License-Identifier: Apache-2.0
// Threads of this library: named, and deaf to every signal, so that a program's handlers run on its own threads.
// Any thread.
// The caller owns the thread.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include <headrace/error.h>

#include "os/error.h"

namespace headrace::os {

// Fails with the errno of pthread_create (EAGAIN: a limit on threads). `name` has at most 15 characters.
template <class Function>
[[nodiscard]] Result<std::thread> start_thread(const char* name, Function function) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits this
  Result<std::thread> thread;
  try {
    thread = std::thread(std::move(function));
    pthread_setname_np(thread->native_handle(), name);
  } catch (const std::system_error& failure) {
    thread = std::unexpected(system_error("start thread", {}, failure.code().value()));
  } catch (const std::bad_alloc&) {
    thread = std::unexpected(system_error("start thread", {}, ENOMEM));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace headrace::os
