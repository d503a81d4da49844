// SPDX-License-Identifier: Apache-2.0
// A user's program: writes an odd number of bytes to the file it is given, reads them back, compares.
// One thread. Owns its buffers.

#include <cstdio>
#include <cstring>
#include <string>

#include <headrace/headrace.h>

namespace {

int fail(const headrace::Error& error) {
  std::printf("%s\n", error.message().c_str());
  return 1;
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) return 2;
  const std::string path = arguments[1];
  constexpr uint64_t bytes = (uint64_t{1} << 20) + 3;

  auto handle = headrace::Handle::create();
  if (!handle) return fail(handle.error());
  auto source = headrace::Buffer::create(bytes);
  if (!source) return fail(source.error());
  auto target = headrace::Buffer::create(bytes);
  if (!target) return fail(target.error());
  for (uint64_t i = 0; i < bytes; ++i)
    source->data()[i] = static_cast<std::byte>(i * 2654435761U >> 24);

  auto file = headrace::File::open(path, headrace::FileMode::truncate);
  if (!file) return fail(file.error());
  auto write = handle->write(*file, {.source = {source->data(), bytes, {}}});
  if (!write) return fail(write.error());
  if (auto written = write->result(); !written) return fail(written.error());
  auto read = handle->read(*file, {.target = target->region()});
  if (!read) return fail(read.error());
  auto moved = read->result();
  if (!moved) return fail(moved.error());
  if (std::memcmp(source->data(), target->data(), bytes) != 0) {
    std::printf("the bytes differ\n");
    return 1;
  }
  if (auto closed = handle->close(); !closed) return fail(closed.error());
  std::printf("headrace %s: %llu bytes came back\n", HEADRACE_VERSION, static_cast<unsigned long long>(*moved));
  return 0;
}
