// SPDX-License-Identifier: Apache-2.0
// Checkpoint files: torch's two containers and safetensors, written whole or not at all, read at the speed of the device.
// Any thread; calls block until done. Memory named by a Region must stay as it is until the call returns.
// Nothing here keeps a reference to the handle or to the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <headrace/atomic_file.h>
#include <headrace/buffer.h>
#include <headrace/error.h>
#include <headrace/handle.h>
#include <headrace/pickle.h>
#include <headrace/region.h>
#include <headrace/tensor.h>

namespace headrace {

// One pickle and the storages it names, as torch.save writes them.
struct TorchArchive {
  std::string_view pickle;                // protocol 2; storage i has the persistent id key "i"
  std::span<const ConstRegion> storages;  // raw bytes, each written once
};

// How bytes in a device's memory come to the host while a file is written.
struct DeviceCopy {
  // Copies `source`, whose device is not the host, to `target`: as many bytes, in `staging`. Called in the calling thread; it
  // must not throw. An error ends the save, which returns it.
  std::function<Status(const ConstRegion& source, std::span<std::byte> target)> copy = {};
  // The caller's, 512 KiB or more: one quarter is filled while the others are written. 64 MiB on huge pages serve every disk.
  std::span<std::byte> staging = {};
};

struct SaveOptions {
  Durability durability = Durability::data;  // `none`: a power cut may leave an empty or torn file under the final name
  Existing existing = Existing::replace;
  uint32_t alignment_bytes = 4096;  // of the records of a torch zip archive: a power of two, 64..32768
  // Asked ten times a second while a call waits; true ends it with ErrorCode::interrupted. The old file stays. Called in the
  // calling thread; it must not throw.
  std::function<bool()> interrupted = {};
  // Needed if a region is not on the host. Many small ones are better copied to the host before.
  DeviceCopy device_copy = {};
};

// Each returns the length of the file in bytes. The file appears under `path` whole and, with Durability::data, safe from
// a power cut, or not at all: see AtomicFile for links and permissions. Temporary files that killed processes left in the folder
// are removed. An error names the operation, the path, the offset and the errno; ENOSPC also the space that is free.

// The zip container of torch.save, with the CRC-32 of every record: docs/formats/torch-zip.md.
[[nodiscard]] HEADRACE_EXPORT Result<uint64_t> save_torch_zip(Handle& handle, const std::string& path,
                                                              const TorchArchive& archive,
                                                              const SaveOptions& options = {});

struct TorchLegacyStorage {
  std::string_view key;  // as the pickle's persistent ids name it
  uint64_t element_count = 0;
  ConstRegion data;
};

// The container of torch before 1.6: no sums, no memory mapping: docs/formats/torch-legacy.md.
[[nodiscard]] HEADRACE_EXPORT Result<uint64_t> save_torch_legacy(Handle& handle, const std::string& path,
                                                                 std::string_view pickle,
                                                                 std::span<const TorchLegacyStorage> storages,
                                                                 const SaveOptions& options = {});

// A dense tensor in row-major order.
struct NamedTensor {
  std::string_view name;
  DType dtype = DType::float32;
  std::span<const uint64_t> shape;  // in elements; of float4_e2m1fn_x2 in bytes for torch, in halves for safetensors
  ConstRegion data;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

// docs/formats/safetensors.md. The order of `tensors` does not matter.
[[nodiscard]] HEADRACE_EXPORT Result<uint64_t> save_safetensors(Handle& handle, const std::string& path,
                                                                std::span<const NamedTensor> tensors,
                                                                const std::optional<Metadata>& metadata = std::nullopt,
                                                                const SaveOptions& options = {});

// What torch.save writes for a dict from names to tensors, in their order.
[[nodiscard]] HEADRACE_EXPORT Result<uint64_t> save_torch(Handle& handle, const std::string& path,
                                                          std::span<const NamedTensor> tensors,
                                                          const SaveOptions& options = {});

enum class CheckpointFormat : uint8_t { torch_zip, torch_legacy, safetensors };
// "torch", "torch-legacy", "safetensors".
[[nodiscard]] HEADRACE_EXPORT std::string_view checkpoint_format_name(CheckpointFormat format) noexcept;

// Bytes that tensors are views of: a storage of torch, or one tensor of a safetensors file.
struct StoredBytes {
  std::string key;            // torch: the storage's; safetensors: the tensor's name
  uint64_t offset_bytes = 0;  // in the file
  uint64_t bytes = 0;
  std::optional<uint32_t> crc32;  // where the file has one
  uint64_t lead_bytes = 0;        // in front of it: bytes of the format's own, for check_lead()
  bool readable = true;           // false: compressed or encrypted, so these are not the bytes that it stands for
};

// Names of nested things are cut to this, so that a deep object has no endless ones.
inline constexpr size_t kJoinedNameBytesMax = 4096;

struct StoredTensor {
  std::string name;  // torch: the keys that lead to it, joined by "."
  DType dtype = DType::float32;
  std::vector<uint64_t> shape;   // in elements as the format counts them
  std::vector<int64_t> strides;  // in elements
  uint32_t storage = 0;          // index into CheckpointFile::storages()
  uint64_t storage_offset_bytes = 0;
  uint64_t bytes = 0;      // of its elements
  bool contiguous = true;  // its elements lie in order, and as they are
  bool requires_grad = false;
  bool conjugate = false;  // complex elements lie there with the other sign of the imaginary part
  bool negative = false;   // elements lie there with the other sign
};

// Something in a torch file's object that is no tensor.
struct StoredValue {
  std::string name;  // as a tensor's
  std::string text;  // for people: "5", "'adam'", "None", "an object of torch.Size"
  enum class Kind : uint8_t {
    plain,
    object,  // it may hold tensors, which are not listed
    shared,  // a container that stands under another name too; what is in it is listed under that name alone
  } kind = Kind::plain;
};

enum class Verify : uint8_t {
  automatic,  // whole storages that have a sum are compared with it
  require,    // and those that have none are refused
  off,
};

struct LoadOptions {
  Verify verify = Verify::automatic;
  std::function<bool()> interrupted = {};  // as in SaveOptions
  PickleProtocols protocols = PickleProtocols::torch;
};

// Part of a storage, and where it goes.
struct StorageRead {
  uint32_t storage = 0;
  uint64_t offset_bytes = 0;  // in the storage
  Region target;
};

// Bytes in new memory: `data` lies in `memory`, which several may share.
struct LoadedBytes {
  std::byte* data = nullptr;  // null for none
  uint64_t bytes = 0;
  uint32_t memory = 0;  // index into LoadedStorages::memory
};
struct LoadedStorages {
  std::vector<LoadedBytes> storages;  // as asked for
  std::vector<Buffer> memory;
};

// A checkpoint file opened for reading: what is in it is known, and nothing of the data is read yet. Untrusted files are
// safe: every number is checked against the file's length, and nothing in a pickle is run.
// Any thread may read at the same time.
class HEADRACE_EXPORT CheckpointFile {
 public:
  // The format is told by the content. ErrorCode::corrupt names the offset and the rule that is broken.
  [[nodiscard]] static Result<CheckpointFile> open(Handle& handle, const std::string& path,
                                                   const LoadOptions& options = {});

  CheckpointFile(CheckpointFile&&) noexcept;
  CheckpointFile& operator=(CheckpointFile&&) noexcept;
  ~CheckpointFile();

  [[nodiscard]] CheckpointFormat format() const noexcept;
  [[nodiscard]] const std::string& path() const noexcept;
  [[nodiscard]] uint64_t file_bytes() const noexcept;
  // Of the open file, to map it: the path may name another one by now. It belongs to this object.
  [[nodiscard]] int descriptor() const noexcept;
  [[nodiscard]] std::span<const StoredBytes> storages() const noexcept;
  [[nodiscard]] std::optional<uint32_t> find_storage(std::string_view key) const;
  // All of a safetensors file; of a torch file those that nested dicts, lists and tuples lead to.
  [[nodiscard]] std::span<const StoredTensor> tensors() const noexcept;
  // Of a torch file: what those containers hold besides. A container that holds nothing counts too.
  [[nodiscard]] std::span<const StoredValue> other_values() const noexcept;
  // Of a safetensors file.
  [[nodiscard]] const std::optional<Metadata>& metadata() const noexcept;
  // Of a torch file: its object, with unknown globals collected, and the bytes it views. Null for others.
  [[nodiscard]] const Pickle* pickle() const noexcept;
  [[nodiscard]] std::string_view pickle_bytes() const noexcept;
  // Of a torch zip archive: false when a big-endian machine wrote it.
  [[nodiscard]] bool little_endian() const noexcept;

  // Do the bytes in front of a storage say of it what the rest of the file does? `lead` are its lead_bytes.
  [[nodiscard]] Status check_lead(uint32_t storage, std::span<const std::byte> lead) const;
  // Of a torch zip archive: the records that hold no storage which the pickle names. `key` is the record's name.
  [[nodiscard]] Result<std::vector<StoredBytes>> other_records(Handle& handle, const LoadOptions& options = {}) const;

  // Blocks until all is in place. On an error the targets hold anything.
  [[nodiscard]] Status read(Handle& handle, std::span<const StorageRead> reads, const LoadOptions& options = {}) const;
  // Whole storages into new memory on huge pages, at the addresses that suit the file best.
  [[nodiscard]] Result<LoadedStorages> load(Handle& handle, std::span<const uint32_t> storages,
                                            const LoadOptions& options = {}) const;

  class Impl;  // of the library

 private:
  explicit CheckpointFile(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
