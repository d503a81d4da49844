// SPDX-License-Identifier: Apache-2.0
#include "python.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "signals.h"

namespace headrace::cli {
namespace {

std::string own_path() {
  std::string path(4096, '\0');
  const ssize_t bytes = ::readlink("/proc/self/exe", path.data(), path.size());
  path.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return path;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words)
    all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

// What comes out of `descriptor` until its end; nothing after 20 s, a stop signal, or more than a megabyte.
std::optional<std::string> read_until_end(int descriptor) {
  constexpr size_t kBytesMax = size_t{1} << 20;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string text;
  std::array<char, 4096> piece;
  while (std::chrono::steady_clock::now() < end && !stopped() && text.size() < kBytesMax) {
    pollfd waiting = {.fd = descriptor, .events = POLLIN, .revents = 0};
    if (::poll(&waiting, 1, 100) <= 0) continue;
    const ssize_t bytes = ::read(descriptor, piece.data(), piece.size());
    if (bytes == 0) return text;
    if (bytes < 0 && errno != EINTR) return std::nullopt;
    if (bytes > 0) text.append(piece.data(), static_cast<size_t>(bytes));
  }
  return std::nullopt;
}

}  // namespace

std::string python_program() {
  if (const char* named = std::getenv("HEADRACE_PYTHON"); named != nullptr && *named != '\0') return named;
  const std::string own = own_path();
  const size_t slash = own.rfind('/');
  if (slash != std::string::npos) {
    const std::string beside = own.substr(0, slash) + "/python3";
    if (::access(beside.c_str(), X_OK) == 0) return beside;
  }
  return "python3";
}

Exit become_python(Console& console, const std::vector<std::string>& arguments) {
  const std::string python = python_program();
  if (ask_python("import headrace; print(headrace.__version__)").value_or("").empty()) {
    if (stopped()) end_by_signal(stop_signal());
    console.note(
        fmt::format("headrace: this command is written in Python, and {} has no package headrace; install it with: "
                    "{} -m pip install headrace",
                    python, python));
    return Exit::failed;
  }
  std::vector<std::string> words = {python, "-m", "headrace"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  (void)console.flush();
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGPIPE, &action, nullptr);  // the one that exec would keep ignored
  ::setenv("PYTHONSAFEPATH", "1", 1);      // a random.py of the current folder is none of ours
  ::execvp(python.c_str(), pointers(words).data());
  console.note(fmt::format("headrace: cannot run {}: {}", python, std::strerror(errno)));
  return Exit::failed;
}

std::optional<std::string> ask_python(const std::string& code) {
  std::array<int, 2> pipe_ends;
  if (::pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  const std::string python = python_program();
  // Not what lies in the current folder: somebody else's json.py may.
  std::vector<std::string> words = {python, "-c", "import sys; sys.path = [p for p in sys.path if p]\n" + code};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, python.c_str(), &actions, nullptr, pointers(words).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe_ends[1]);
  std::optional<std::string> answer;
  if (error == 0) {
    answer = read_until_end(pipe_ends[0]);
    if (!answer) ::kill(child, SIGKILL);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) answer.reset();
  }
  ::close(pipe_ends[0]);
  return answer;
}

}  // namespace headrace::cli
