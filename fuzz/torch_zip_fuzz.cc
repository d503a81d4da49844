// SPDX-License-Identifier: Apache-2.0
// Any bytes as a zip file: what the directory's reader accepts lies inside the file, each record by itself.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "format/torch_zip_reader.h"

using namespace headrace;
using namespace headrace::format;

namespace {
void expect(bool holds) {
  if (!holds) std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  (void)is_zip(file);
  const size_t tail = std::min<size_t>(size, kZipTailBytesMax);
  const Result<ZipDirectory> directory = find_zip_directory(file.last(tail), size);
  if (!directory) return 0;
  expect(directory->begin <= size && directory->bytes <= size - directory->begin);
  const Result<std::vector<ZipEntry>> entries =
      parse_zip_directory(file.subspan(directory->begin, directory->bytes), *directory);
  if (!entries) return 0;
  expect(entries->size() == directory->entries);
  for (const ZipEntry& entry : *entries) {
    expect(entry.header_begin < entry.limit && entry.limit <= directory->begin);
    const Result<uint64_t> begin = zip_data_begin(entry, file.subspan(entry.header_begin));
    if (begin) expect(*begin > entry.header_begin && *begin <= entry.limit && entry.bytes <= entry.limit - *begin);
  }
  const Result<TorchZipContents> contents = torch_zip_contents_of(*entries);
  if (!contents) return 0;
  expect(contents->pickle < entries->size());
  for (const size_t storage : contents->storages) {
    const std::string key = (*entries)[storage].name.substr(contents->archive.size() + 6);
    expect(contents->find_storage(*entries, key) == storage);
  }
  return 0;
}
