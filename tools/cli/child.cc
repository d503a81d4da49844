// SPDX-License-Identifier: Apache-2.0
#include "child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "signals.h"

namespace headrace::cli {
namespace {

constexpr size_t kOutputBytesMax = size_t{4} << 20;
constexpr int kTickMilliseconds = 50;

struct Pipe {
  int read_end = -1;
  int write_end = -1;

  Pipe() {
    std::array<int, 2> ends = {-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) == 0) {
      read_end = ends[0];
      write_end = ends[1];
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_end(read_end);
    close_end(write_end);
  }
  static void close_end(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
};

// Between fork and exec, where only what is safe in a signal handler may be called: this process has threads.
[[noreturn]] void become(char* const* words, int out, int err, pid_t parent) {
  ::setpgid(0, 0);  // Ctrl-C is for this program, which then ends the child and all of its own
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGPIPE, &action, nullptr);  // the one that exec would keep ignored
  ::execv(words[0], words);
  ::_exit(127);
}

// False once the other side has closed it.
bool read_some(int descriptor, std::string& text) {
  std::array<char, 65536> piece;
  const ssize_t bytes = ::read(descriptor, piece.data(), piece.size());
  if (bytes < 0) return errno == EINTR || errno == EAGAIN;
  const size_t room = kOutputBytesMax - std::min(kOutputBytesMax, text.size());
  text.append(piece.data(), std::min(static_cast<size_t>(bytes), room));
  return bytes > 0;
}

}  // namespace

std::string find_program(const std::string& name) {
  const char* const variable = std::getenv("PATH");
  std::string_view path = variable != nullptr ? variable : "/usr/bin:/bin";
  while (!path.empty()) {
    const std::string_view folder = path.substr(0, path.find(':'));
    path.remove_prefix(std::min(folder.size() + 1, path.size()));
    const std::string candidate = fmt::format("{}/{}", folder.empty() ? "." : folder, name);
    struct stat status = {};
    if (::stat(candidate.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(candidate.c_str(), X_OK) == 0)
      return candidate;
  }
  return {};
}

ChildEnd run_child(std::vector<std::string> words, std::chrono::seconds limit, void (*tick)(void*), void* context) {
  ChildEnd end;
  std::vector<char*> pointers;
  for (std::string& word : words)
    pointers.push_back(word.data());
  pointers.push_back(nullptr);
  Pipe out;
  Pipe err;
  const pid_t parent = ::getpid();
  const pid_t child = out.read_end < 0 || err.read_end < 0 ? -1 : ::fork();
  if (child == 0) become(pointers.data(), out.write_end, err.write_end, parent);
  if (child < 0) {
    end.why_not = fmt::format("cannot start {}: {}", words[0], std::strerror(errno));
    return end;
  }
  ::setpgid(child, child);  // whichever of the two comes first
  Pipe::close_end(out.write_end);
  Pipe::close_end(err.write_end);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  bool killed = false;
  std::array waiting = {pollfd{.fd = out.read_end, .events = POLLIN, .revents = 0},
                        pollfd{.fd = err.read_end, .events = POLLIN, .revents = 0}};
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    if (stopped() || std::chrono::steady_clock::now() > deadline) {
      end.why_not = stopped() ? "stopped by a signal" : fmt::format("took longer than {} s", limit.count());
      killed = true;
      break;
    }
    if (::poll(waiting.data(), waiting.size(), kTickMilliseconds) == 0 && tick != nullptr) tick(context);
    if (waiting[0].revents != 0 && !read_some(waiting[0].fd, end.out)) waiting[0].fd = -1;
    if (waiting[1].revents != 0 && !read_some(waiting[1].fd, end.err)) waiting[1].fd = -1;
  }
  if (killed) ::kill(-child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (killed) return end;
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.why_not = fmt::format("ended by signal {}", WTERMSIG(status));
  if (end.exit_code > 0) end.why_not = fmt::format("ended with {}", end.exit_code);
  return end;
}

}  // namespace headrace::cli
