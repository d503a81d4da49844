// SPDX-License-Identifier: Apache-2.0
// By name: the dynamic linker's cache, then the folders where distributions, CUDA's installer and container runtimes put them.
// Any thread.
// Owns nothing.
#include <unistd.h>

#include <array>
#include <vector>

#include <fmt/format.h>

#include "diagnose/report_system.h"
#include "os/text_file.h"

namespace headrace::diagnose {
namespace {

constexpr const char* kLinkerCache = "/etc/ld.so.cache";
constexpr size_t kLinkerCacheBytesMax = size_t{16} << 20;

bool is_file(const std::string& path) { return ::access(path.c_str(), R_OK) == 0; }

// The cache holds each path as a string between zero bytes; more of its format need not be known.
std::string path_in_cache(const std::string& cache, const std::string& name) {
  const std::string needle = "/" + name + '\0';
  for (size_t at = cache.find(needle); at != std::string::npos; at = cache.find(needle, at + 1)) {
    const size_t zero = cache.rfind('\0', at);
    const size_t begin = zero == std::string::npos ? 0 : zero + 1;
    const std::string path = cache.substr(begin, at + needle.size() - 1 - begin);
    if (path.starts_with('/') && is_file(path)) return os::one_line(path);
  }
  return {};
}

LibraryFacts find_library(const std::string& cache, const std::vector<std::string>& folders,
                          const std::array<const char*, 2>& names) {
  for (const char* name : names) {
    if (std::string path = path_in_cache(cache, name); !path.empty()) return {.name = name, .path = std::move(path)};
  }
  for (const std::string& folder : folders) {
    for (const char* name : names) {
      const std::string path = fmt::format("{}/{}", folder, name);
      if (is_file(path)) return {.name = name, .path = path};
    }
  }
  return {.name = names[0], .path = {}};
}

}  // namespace

GpuFacts find_gpu_libraries(const KernelFolders& kernel, const std::string& machine) {
  const std::string cache = os::read_text(kLinkerCache, kLinkerCacheBytesMax).value_or("");
  const std::vector<std::string> folders = {
      fmt::format("/usr/lib/{}-linux-gnu", machine),
      fmt::format("/lib/{}-linux-gnu", machine),
      "/usr/lib64",
      "/lib64",
      "/usr/lib",
      "/usr/local/lib",
      "/usr/local/nvidia/lib64",
      "/usr/local/cuda/lib64",
      fmt::format("/usr/local/cuda/targets/{}-linux/lib", machine == "aarch64" ? "sbsa" : machine),
      "/opt/cuda/lib64",
      "/usr/lib/wsl/lib",
  };
  GpuFacts facts;
  facts.cuda_driver = find_library(cache, folders, {"libcuda.so.1", "libcuda.so"});
  facts.cufile = find_library(cache, folders, {"libcufile.so.0", "libcufile.so"});
  facts.driver_version = os::read_line(kernel.sys + "/module/nvidia/version").value_or("");
  facts.nvidia_fs_version = os::read_line(kernel.sys + "/module/nvidia_fs/version").value_or("");
  return facts;
}

}  // namespace headrace::diagnose
