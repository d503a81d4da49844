// SPDX-License-Identifier: Apache-2.0
// Reading the storages of a checkpoint file: into memory of the caller, or as an image of the file into new memory.
// Any thread; blocks.
// New memory belongs to the result; scratch memory to the call.
#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/align.h"
#include "checkpoint/checkpoint_file.h"
#include "checkpoint/waiting.h"
#include "os/file_system.h"
#include "transfer/open_file.h"

namespace headrace {
namespace {

constexpr uint64_t kSharedMemoryBytes = uint64_t{64} << 20;  // smaller storages share blocks of up to this
constexpr uint64_t kOwnMemoryBytes = uint64_t{32} << 20;     // larger ones have their own
constexpr uint64_t kGapBytesMax = uint64_t{64} << 10;        // between storages that are read in one go
constexpr uint64_t kSmallPagesBytes = uint64_t{1} << 20;     // less than this is no use on a huge page
constexpr uint64_t kGranuleBytes = 4096;
constexpr uint64_t kPlaceBytes = 64;  // what storages that are moved begin at a multiple of, as in torch's own memory

// The requests of one call, and what is to be checked once they are done.
class Batch {
 public:
  Batch(const CheckpointFile::Impl& file, CacheMode cache, const LoadOptions& options)
      : file_(file), cache_(cache), options_(options) {}

  void reserve(size_t items) { items_.reserve(items); }
  // Memory for what the format has in front of a storage, where there is no better place for it.
  Region scratch_for_lead(uint32_t storage) {
    std::vector<std::byte>& lead =
        scratch_.emplace_back(file_.storages[storage].offset_bytes - file_.lead_begin[storage]);
    return {lead.data(), lead.size(), {}};
  }

  void add(uint64_t offset, Region target) {
    if (target.bytes != 0) items_.push_back(item(offset, target, Checksum::none));
  }
  // All of a storage, and what the format has in front of it.
  void add_storage(uint32_t storage, Region lead, Region target) {
    const StoredBytes& stored = file_.storages[storage];
    if (lead.bytes != 0) {
      const uint64_t begin = file_.lead_begin[storage];
      const uint64_t lead_bytes = stored.offset_bytes - begin;
      add(stored.offset_bytes - lead.bytes, lead);
      leads_.push_back({storage, std::span(lead.data + (lead.bytes - lead_bytes), lead_bytes)});
    }
    const bool sum = stored.crc32.has_value() && options_.verify != Verify::off;
    if (sum) sums_.push_back({storage, items_.size()});
    items_.push_back(item(stored.offset_bytes, target, sum ? Checksum::crc32 : Checksum::none));
  }

  Status run(Handle& handle) {
    const Result<std::vector<Transfer>> transfers = handle.read_many(items_);
    if (!transfers) return std::unexpected(transfers.error());
    if (Status done = checkpoint::wait_for_all(*transfers, options_.interrupted, "load"); !done) return done;
    for (const auto& [storage, bytes] : leads_) {
      if (Status checked = file_.check_lead(storage, bytes); !checked) return checked;
    }
    for (const auto& [storage, index] : sums_) {
      const StoredBytes& stored = file_.storages[storage];
      const uint32_t sum = *(*transfers)[index].crc32();
      if (sum == *stored.crc32) continue;
      return std::unexpected(file_.corrupt(
          stored.offset_bytes, stored.bytes,
          fmt::format(
              "{}: the CRC-32 of its data is {:08x}, and the file says {:08x}: the file was damaged after it was "
              "written. Take another copy, or look at what is left with verify=off",
              file_.describe(storage), sum, *stored.crc32)));
    }
    return {};
  }

 private:
  ReadItem item(uint64_t offset, Region target, Checksum checksum) const {
    return {.file = file_.file,
            .request = {.offset_bytes = offset, .target = target, .cache = cache_, .checksum = checksum}};
  }

  struct Lead {
    uint32_t storage;
    std::span<const std::byte> bytes;
  };
  struct Sum {
    uint32_t storage;
    size_t item;
  };

  const CheckpointFile::Impl& file_;
  CacheMode cache_;
  const LoadOptions& options_;
  std::vector<ReadItem> items_;
  std::deque<std::vector<std::byte>> scratch_;
  std::vector<Lead> leads_;
  std::vector<Sum> sums_;
};

// Asked once for the whole of it, so that ranges that touch take one route.
CacheMode cache_mode(const File& file, uint64_t begin, uint64_t end) {
  const transfer::OpenFile& open = *file.internal();
  const std::optional<uint64_t> resident = open.system().resident_bytes(open.descriptor(), begin, end - begin);
  if (!resident) return CacheMode::automatic;
  return *resident >= (end - begin) / 2 ? CacheMode::use : CacheMode::bypass;
}

Status refuse_unsummed(const CheckpointFile::Impl& file, uint32_t storage) {
  return std::unexpected(
      Error{.code = ErrorCode::unavailable,
            .operation = "load",
            .path = file.path,
            .detail = fmt::format("verify=require, but there is no sum to compare {} with", file.describe(storage))});
}

// Storages that lie near each other in the file, and the memory that becomes an image of it from the first to the last. Those
// that are moved lie one behind the other instead.
struct Run {
  uint64_t begin = 0;  // whole granules, but for the end of the file
  uint64_t end = 0;
  std::vector<uint32_t> storages;  // by place in the file
};

// What the address of each storage has to be a multiple of for the elements of its tensors. Files of the legacy container and
// of safetensors may put them anywhere, and compilers rely on it that no float lies at an odd address.
std::vector<uint8_t> element_alignments(const CheckpointFile::Impl& file) {
  constexpr uint8_t kUnknown = 8;  // of storages that no listed tensor views
  std::vector<uint8_t> alignments(file.storages.size());
  for (const StoredTensor& tensor : file.tensors) {
    const auto bytes = static_cast<uint8_t>(std::max<uint32_t>(1, dtype_facts(tensor.dtype).torch_bytes));
    alignments[tensor.storage] = std::max(alignments[tensor.storage], bytes);
  }
  std::ranges::replace(alignments, uint8_t{0}, kUnknown);
  return alignments;
}

// Each once, by place in the file.
std::vector<uint32_t> in_order(const CheckpointFile::Impl& file, std::span<const uint32_t> wanted) {
  std::vector<uint32_t> order;
  for (const uint32_t storage : wanted) {
    if (file.storages[storage].bytes != 0) order.push_back(storage);
  }
  std::ranges::sort(order, {}, [&](uint32_t i) { return std::pair(file.storages[i].offset_bytes, i); });
  const auto twice = std::ranges::unique(order);
  order.erase(twice.begin(), twice.end());
  return order;
}

std::vector<Run> runs_to_move(const CheckpointFile::Impl& file, std::span<const uint32_t> order) {
  std::vector<Run> runs;
  for (const uint32_t storage : order) {
    const uint64_t bytes = base::align_up(file.storages[storage].bytes, kPlaceBytes);
    if (runs.empty() || runs.back().end + bytes > kSharedMemoryBytes) runs.emplace_back();
    runs.back().end += bytes;
    runs.back().storages.push_back(storage);
  }
  return runs;
}

std::vector<Run> runs_of(const CheckpointFile::Impl& file, std::span<const uint32_t> order) {
  std::vector<Run> runs;
  uint64_t data_begin = 0;  // of the last run, to the byte
  uint64_t data_end = 0;
  bool alone = false;
  for (const uint32_t storage : order) {
    const StoredBytes& stored = file.storages[storage];
    const uint64_t begin = file.lead_begin[storage];
    const uint64_t end = stored.offset_bytes + stored.bytes;
    const bool large = stored.bytes >= kOwnMemoryBytes;
    const bool joins = !runs.empty() && !alone && !large && begin >= data_end && begin - data_end <= kGapBytesMax &&
                       end - data_begin <= kSharedMemoryBytes;
    if (!joins) {
      runs.push_back({.begin = base::align_down(begin, kGranuleBytes), .end = 0, .storages = {}});
      data_begin = begin;
    }
    data_end = end;
    alone = large;
    runs.back().end = std::min(base::align_up(end, kGranuleBytes), file.file_bytes);
    runs.back().storages.push_back(storage);
  }
  return runs;
}

}  // namespace

Status CheckpointFile::read(Handle& handle, std::span<const StorageRead> reads, const LoadOptions& options) const {
  Batch batch(*impl_, CacheMode::automatic, options);
  batch.reserve(2 * reads.size());
  for (const StorageRead& one : reads) {
    if (one.storage >= impl_->storages.size() || one.offset_bytes > impl_->storages[one.storage].bytes ||
        one.target.bytes > impl_->storages[one.storage].bytes - one.offset_bytes) {
      return std::unexpected(Error{.code = ErrorCode::invalid_argument,
                                   .operation = "load",
                                   .path = impl_->path,
                                   .detail = "a read outside the storage it names"});
    }
    const StoredBytes& stored = impl_->storages[one.storage];
    const bool whole = one.target.bytes == stored.bytes;
    if (options.verify == Verify::require && stored.bytes != 0 && (!whole || !stored.crc32))
      return refuse_unsummed(*impl_, one.storage);
    if (one.target.bytes == 0) continue;
    if (whole) {
      batch.add_storage(one.storage, batch.scratch_for_lead(one.storage), one.target);
    } else {
      batch.add(stored.offset_bytes + one.offset_bytes, one.target);
    }
  }
  return batch.run(handle);
}

Result<LoadedStorages> CheckpointFile::load(Handle& handle, std::span<const uint32_t> storages,
                                            const LoadOptions& options) const {
  for (const uint32_t storage : storages) {
    if (storage >= impl_->storages.size())
      return std::unexpected(Error{.code = ErrorCode::invalid_argument,
                                   .operation = "load",
                                   .path = impl_->path,
                                   .detail = "there is no such storage"});
    if (options.verify == Verify::require && impl_->storages[storage].bytes != 0 && !impl_->storages[storage].crc32)
      return std::unexpected(refuse_unsummed(*impl_, storage).error());
  }
  const std::vector<uint32_t> order = in_order(*impl_, storages);
  const std::vector<uint8_t> alignments = element_alignments(*impl_);
  std::vector<uint32_t> in_place;
  std::vector<uint32_t> moved;
  for (const uint32_t storage : order)
    (impl_->storages[storage].offset_bytes % alignments[storage] == 0 ? in_place : moved).push_back(storage);
  LoadedStorages loaded;
  std::vector<LoadedBytes> places(impl_->storages.size());
  const CacheMode cache =
      order.empty() ? CacheMode::automatic
                    : cache_mode(impl_->file, impl_->lead_begin[order.front()],
                                 impl_->storages[order.back()].offset_bytes + impl_->storages[order.back()].bytes);
  Batch batch(*impl_, cache, options);
  batch.reserve(2 * storages.size() + 2 * order.size());
  const auto add_memory = [&](uint64_t bytes) -> Result<std::byte*> {
    // It will be the user's own memory: neither locked nor pinned.
    Result<Buffer> memory =
        Buffer::create(bytes, {.pages = bytes < kSmallPagesBytes ? PageKind::small : PageKind::transparent,
                               .lock = BufferOptions::Lock::never,
                               .registration = BufferOptions::Register::never});
    if (!memory) {
      Error error = std::move(memory).error();
      error.path = impl_->path;
      return std::unexpected(std::move(error));
    }
    loaded.memory.push_back(*std::move(memory));
    return loaded.memory.back().data();
  };
  const auto place = [&](uint32_t storage, std::byte* data) {
    const uint64_t bytes = impl_->storages[storage].bytes;
    places[storage] = {.data = data, .bytes = bytes, .memory = static_cast<uint32_t>(loaded.memory.size() - 1)};
    return Region{data, bytes, {}};
  };
  for (const Run& run : runs_of(*impl_, in_place)) {
    const Result<std::byte*> image = add_memory(run.end - run.begin);
    if (!image) return std::unexpected(image.error());
    uint64_t position = run.begin;
    for (const uint32_t storage : run.storages) {
      const StoredBytes& stored = impl_->storages[storage];
      batch.add_storage(storage, {*image + (position - run.begin), stored.offset_bytes - position, {}},
                        place(storage, *image + (stored.offset_bytes - run.begin)));
      position = stored.offset_bytes + stored.bytes;
    }
    batch.add(position, {*image + (position - run.begin), run.end - position, {}});
  }
  for (const Run& run : runs_to_move(*impl_, moved)) {
    const Result<std::byte*> memory = add_memory(run.end);
    if (!memory) return std::unexpected(memory.error());
    std::byte* next = *memory;
    for (const uint32_t storage : run.storages) {
      batch.add_storage(storage, batch.scratch_for_lead(storage), place(storage, next));
      next += base::align_up(impl_->storages[storage].bytes, kPlaceBytes);
    }
  }
  if (Status done = batch.run(handle); !done) return std::unexpected(std::move(done).error());
  loaded.storages.reserve(storages.size());
  for (const uint32_t storage : storages)
    loaded.storages.push_back(places[storage]);
  return loaded;
}

}  // namespace headrace
