// SPDX-License-Identifier: Apache-2.0
// Runs the function that the README shows, on a real file.
// One thread.
// Owns its buffers and the file.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "readme_snippet.inc"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string path = argv[1];
  const std::string bytes(1'000'003, 'h');
  std::ofstream(path, std::ios::binary) << bytes;
  auto buffer = headrace::Buffer::create(bytes.size());
  const auto moved = buffer ? load(path, *buffer) : std::unexpected(buffer.error());
  const bool right = moved && *moved == bytes.size() && std::memcmp(buffer->data(), bytes.data(), bytes.size()) == 0;
  if (!moved) std::puts(moved.error().message().c_str());
  std::remove(path.c_str());
  const bool refused = !load(path, *buffer);
  std::puts(right && refused ? "README's C++ works" : "README's C++ does not work");
  return right && refused ? 0 : 1;
}
