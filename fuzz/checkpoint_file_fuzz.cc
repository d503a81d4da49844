// SPDX-License-Identifier: Apache-2.0
// Any bytes as a checkpoint file of any format, opened and loaded as a user does it: what is listed lies inside the file, what is
// loaded are the file's bytes, what is refused says why.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <headrace/checkpoint.h>

using namespace headrace;

namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

// A file in memory, and a handle to read it with.
struct World {
  int descriptor = ::memfd_create("checkpoint", MFD_CLOEXEC);
  std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  Handle handle = *Handle::create({.engine = EngineKind::posix, .workers = 1});

  void put(const uint8_t* data, size_t size) const {
    expect(::ftruncate(descriptor, 0) == 0);
    expect(::pwrite(descriptor, data, size, 0) == static_cast<ssize_t>(size));
  }
};

void expect_reason(const Error& error) {
  expect(error.code == ErrorCode::corrupt || error.code == ErrorCode::unavailable || error.errno_value != 0);
  expect(!error.message().empty() && error.message().size() < 4000);
}

// Every element of the tensor, whatever its strides, lies in its storage.
void expect_inside(const StoredTensor& tensor, std::span<const StoredBytes> storages) {
  expect(tensor.storage < storages.size() && tensor.shape.size() == tensor.strides.size());
  if (std::ranges::find(tensor.shape, uint64_t{0}) != tensor.shape.end()) return;
  const uint64_t storage_bytes = storages[tensor.storage].bytes;
  const uint64_t element_bytes = std::max<uint64_t>(dtype_facts(tensor.dtype).torch_bytes, 1);
  const bool halves = tensor.dtype == DType::float4_e2m1fn_x2;  // of which safetensors counts two to the byte
  __int128 last = 0;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    expect(tensor.strides[i] >= 0);
    last += static_cast<__int128>(tensor.shape[i] - 1) * tensor.strides[i];
  }
  const __int128 end = halves ? last / 2 + 1 : (last + 1) * static_cast<__int128>(element_bytes);
  expect(tensor.storage_offset_bytes <= storage_bytes && end <= storage_bytes - tensor.storage_offset_bytes);
}

void expect_bytes_of_the_file(const CheckpointFile& file, Handle& handle, std::span<const uint8_t> bytes) {
  std::vector<uint32_t> all(file.storages().size());
  for (uint32_t i = 0; i < all.size(); ++i)
    all[i] = i;
  for (const Verify verify : {Verify::automatic, Verify::off}) {
    const Result<LoadedStorages> loaded = file.load(handle, all, {.verify = verify});
    if (!loaded) {
      expect_reason(loaded.error());
      continue;
    }
    for (const uint32_t i : all) {
      const StoredBytes& stored = file.storages()[i];
      const LoadedBytes& one = loaded->storages[i];
      expect(one.bytes == stored.bytes);
      expect(one.bytes == 0 || std::memcmp(one.data, bytes.data() + stored.offset_bytes, one.bytes) == 0);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  world.put(data, size);
  const Result<CheckpointFile> file = CheckpointFile::open(world.handle, world.path);
  if (!file) {
    expect_reason(file.error());
    return 0;
  }
  expect(file->file_bytes() == size);
  for (const StoredBytes& storage : file->storages())
    expect(storage.offset_bytes <= size && storage.bytes <= size - storage.offset_bytes);
  for (const StoredTensor& tensor : file->tensors())
    expect_inside(tensor, file->storages());
  expect_bytes_of_the_file(*file, world.handle, {data, size});
  return 0;
}
