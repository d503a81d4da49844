// SPDX-License-Identifier: Apache-2.0
// Reading to the end, whatever length the file says it has.
// Any thread.
// Owns nothing.
#include "os/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "os/error.h"
#include "os/fd.h"

namespace headrace::os {
namespace {

std::unexpected<Error> refused(const std::string& path, int errno_value, std::string detail) {
  Error error = system_error("read", path, errno_value);
  error.detail = std::move(detail);
  return std::unexpected(std::move(error));
}

}  // namespace

Result<std::vector<std::byte>> read_small_file(const std::string& path, uint64_t bytes_max) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return std::unexpected(system_error("open", path, errno));
  struct stat facts = {};
  if (::fstat(file.get(), &facts) != 0) return std::unexpected(system_error("stat", path, errno));
  if (!S_ISREG(facts.st_mode)) return refused(path, EINVAL, "this is no ordinary file");
  // Files of /proc and /sys say that they have 0 or 4096 bytes, whatever is in them: the end tells.
  std::vector<std::byte> bytes;
  const uint64_t step_bytes =
      std::clamp<uint64_t>(static_cast<uint64_t>(facts.st_size) + 1, 4096, std::max<uint64_t>(bytes_max + 1, 4096));
  while (true) {
    const uint64_t at = bytes.size();
    if (at > bytes_max) return refused(path, EFBIG, fmt::format("it is longer than {} bytes", bytes_max));
    bytes.resize(at + step_bytes);
    const ssize_t got = ::read(file.get(), bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno != EINTR) return std::unexpected(system_error("read", path, errno));
    bytes.resize(at + static_cast<uint64_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return bytes;
  }
}

}  // namespace headrace::os
