// SPDX-License-Identifier: Apache-2.0
// See the header.
// One thread at a time.
// The temporary file goes when the object does.
#include "checkpoint/atomic_write.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/align.h"
#include "base/crc32.h"
#include "checkpoint/waiting.h"

namespace headrace::checkpoint {
namespace {

constexpr uint64_t kPageBytesMin = 4096;
constexpr uint64_t kSlotGranulesMin = 2;  // a part that begins within a granule has room for more than the rest of it
constexpr std::array<std::byte, 1 << 16> kZeros = {};  // no more than the granule of any file system that is known

std::string free_space_at(const std::string& path) {
  std::error_code failed;
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::filesystem::space_info space = std::filesystem::space(folder.empty() ? "." : folder, failed);
  return failed ? std::string() : fmt::format("{} bytes are free there", space.available);
}

uint64_t end_of(const Stretch& stretch) {
  uint64_t end = stretch.offset_bytes;
  for (const ConstRegion& source : stretch.sources)
    end += source.bytes;
  return end;
}

bool on_device(const ConstRegion& source) { return source.device.kind != DeviceKind::host && source.bytes != 0; }

// The sources of a stretch, copied from front to back.
class Sources {
 public:
  explicit Sources(std::span<const ConstRegion> regions) : regions_(regions) {}

  // Fills `target`; there is as much left.
  Status copy_next(std::span<std::byte> target, const decltype(DeviceCopy::copy)& copy) {
    while (!target.empty()) {
      const ConstRegion& region = regions_.front();
      const uint64_t bytes = std::min<uint64_t>(region.bytes - done_bytes_, target.size());
      const ConstRegion source = {region.data + done_bytes_, bytes, region.device};
      if (on_device(source)) {
        if (Status copied = copy(source, target.first(bytes)); !copied) return copied;
      } else if (bytes != 0) {
        std::memcpy(target.data(), source.data, bytes);
      }
      target = target.subspan(bytes);
      done_bytes_ += bytes;
      if (done_bytes_ == region.bytes) {
        regions_ = regions_.subspan(1);
        done_bytes_ = 0;
      }
    }
    return {};
  }

 private:
  std::span<const ConstRegion> regions_;  // what is not copied yet
  uint64_t done_bytes_ = 0;               // of the first of them
};

}  // namespace

AtomicWrite::AtomicWrite(Handle& handle, std::string path, AtomicFile file, uint64_t file_bytes,
                         const SaveOptions& options)
    : handle_(&handle),
      path_(std::move(path)),
      file_(std::move(file)),
      file_bytes_(file_bytes),
      granule_bytes_(std::max<uint64_t>(kPageBytesMin, file_.file().direct_offset_alignment_bytes())),
      padding_bytes_(base::align_up(file_bytes_, granule_bytes_) - file_bytes_),
      interrupted_(options.interrupted),
      device_copy_(options.device_copy),
      slot_bytes_(base::align_down(device_copy_.staging.size() / kSlots, granule_bytes_)) {}

Result<AtomicWrite> AtomicWrite::create(Handle& handle, const std::string& path, uint64_t file_bytes,
                                        const SaveOptions& options) {
  sweep_temporaries_beside(path);
  Result<AtomicFile> file = AtomicFile::create(
      path, {.size_bytes = file_bytes, .durability = options.durability, .existing = options.existing});
  if (!file) {
    Error error = std::move(file).error();
    error.operation = "save";
    if (error.errno_value == ENOSPC || error.errno_value == EDQUOT)
      error.detail = fmt::format("the file needs {} bytes; {}. The old file, if there was one, is as it was",
                                 file_bytes, free_space_at(path));
    return std::unexpected(std::move(error));
  }
  return AtomicWrite(handle, path, *std::move(file), file_bytes, options);
}

Error AtomicWrite::told(Error error) const {
  if (error.errno_value == ENOSPC || error.errno_value == EDQUOT) error.detail = free_space_at(path_);
  if (!error.detail.empty()) error.detail += "; ";
  error.detail += "the old file, if there was one, is as it was";
  return error;
}

// Nothing is under way any more when it returns.
Status AtomicWrite::failed(Error error) {
  for (Transfer& transfer : under_way_)
    transfer.abort();
  (void)finish();
  return std::unexpected(told(std::move(error)));
}

struct AtomicWrite::Batch {
  std::vector<WriteItem> items;
  std::vector<Sum> sums;  // `transfer` is an index into `items`
};

Status AtomicWrite::send(Batch& batch) {
  if (batch.items.empty()) return {};
  Result<std::vector<Transfer>> transfers = handle_->write_many(batch.items);
  if (!transfers) return failed(std::move(transfers).error());
  for (Sum sum : batch.sums) {
    sum.transfer += under_way_.size();
    sums_.push_back(sum);
  }
  std::ranges::move(*transfers, std::back_inserter(under_way_));
  batch.items.clear();
  batch.sums.clear();
  return {};
}

Status AtomicWrite::start(std::span<const Stretch> stretches) {
  Batch batch;
  batch.items.reserve(stretches.size());
  std::vector<ConstRegion> padded;  // the sources of the stretch at the end of the file
  for (const Stretch& stretch : stretches) {
    if (stretch.checksum != Checksum::none) ++asked_;
    if (std::ranges::any_of(stretch.sources, on_device)) {
      if (Status staged = stage(stretch, batch); !staged) return staged;
      continue;
    }
    WriteItem& item = batch.items.emplace_back(
        file_.file(),
        WriteRequest{.offset_bytes = stretch.offset_bytes, .sources = stretch.sources, .checksum = stretch.checksum});
    if (stretch.checksum != Checksum::none)
      batch.sums.push_back({.transfer = batch.items.size() - 1, .bytes_behind = 0, .asked = asked_ - 1});
    if (padding_bytes_ != 0 && padding_bytes_ <= kZeros.size() && end_of(stretch) == file_bytes_) {
      padded.assign(stretch.sources.begin(), stretch.sources.end());
      padded.push_back({kZeros.data(), padding_bytes_, {}});
      item.request.sources = padded;
    }
  }
  return send(batch);
}

// Parts stand in the staging memory as they will in the file: there, too, granules begin at granules.
Status AtomicWrite::stage(const Stretch& stretch, Batch& batch) {
  if (Status usable = check_staging(); !usable) return failed(std::move(usable).error());
  Sources sources(stretch.sources);
  const uint64_t end = end_of(stretch);
  for (uint64_t position = stretch.offset_bytes; position < end;) {
    const uint64_t left_bytes = end - position;
    const uint64_t place =
        base::align_up(slot_filled_bytes_, granule_bytes_) + (position - base::align_down(position, granule_bytes_));
    const uint64_t room_bytes = slot_bytes_ - std::min(place, slot_bytes_);
    if (room_bytes < std::min(left_bytes, slot_bytes_ / 4)) {
      if (Status moved = next_slot(batch); !moved) return moved;
      continue;
    }
    const std::span<std::byte> part =
        device_copy_.staging.subspan(slot_ * slot_bytes_ + place, std::min(left_bytes, room_bytes));
    if (Status copied = sources.copy_next(part, device_copy_.copy); !copied) return failed(std::move(copied).error());
    const bool sum = stretch.checksum != Checksum::none;
    const uint64_t padding_bytes = position + part.size() == file_bytes_ && !sum ? padding_bytes_ : 0;
    std::fill_n(part.data() + part.size(), padding_bytes, std::byte{});
    slot_filled_bytes_ = place + part.size() + padding_bytes;
    batch.items.emplace_back(file_.file(), WriteRequest{.offset_bytes = position,
                                                        .source = {part.data(), part.size() + padding_bytes, {}},
                                                        .checksum = stretch.checksum});
    if (sum) {
      batch.sums.push_back(
          {.transfer = batch.items.size() - 1, .bytes_behind = left_bytes - part.size(), .asked = asked_ - 1});
    }
    position += part.size();
  }
  return {};
}

// The next slot is the one that was sent first.
Status AtomicWrite::next_slot(Batch& batch) {
  if (Status sent = send(batch); !sent) return sent;
  slots_[slot_].users_end = under_way_.size();
  slot_ = (slot_ + 1) % kSlots;
  slot_filled_bytes_ = 0;
  Slot& slot = slots_[slot_];
  const std::span users = std::span(under_way_).subspan(slot.users_begin, slot.users_end - slot.users_begin);
  if (Status done = wait_for_all(users, interrupted_, "save"); !done) return failed(std::move(done).error());
  slot = {.users_begin = under_way_.size(), .users_end = under_way_.size()};
  return {};
}

Status AtomicWrite::check_staging() const {
  const auto refused = [&](std::string detail) {
    return std::unexpected(
        Error{.code = ErrorCode::invalid_argument, .operation = "save", .path = path_, .detail = std::move(detail)});
  };
  if (!device_copy_.copy) return refused("bytes are on a device, and SaveOptions::device_copy cannot bring them");
  if (slot_bytes_ < kSlotGranulesMin * granule_bytes_)
    return refused(fmt::format("SaveOptions::device_copy has {} bytes of staging memory, and this file needs {}",
                               device_copy_.staging.size(), kSlots * kSlotGranulesMin * granule_bytes_));
  return {};
}

Result<std::vector<uint32_t>> AtomicWrite::finish() {
  const std::vector<Transfer> transfers = std::exchange(under_way_, {});
  const std::vector<Sum> sums = std::exchange(sums_, {});
  slots_ = {};
  slot_filled_bytes_ = 0;
  std::vector<uint32_t> found(std::exchange(asked_, 0));
  if (Status done = wait_for_all(transfers, interrupted_, "save"); !done)
    return std::unexpected(told(std::move(done).error()));
  for (const Sum& sum : sums)
    found[sum.asked] ^= base::crc32_contribution(*transfers[sum.transfer].crc32(), sum.bytes_behind);
  return found;
}

Result<std::vector<std::byte>> AtomicWrite::fetch(const ConstRegion& source) {
  if (Status usable = check_staging(); !usable) return std::unexpected(told(std::move(usable).error()));
  std::vector<std::byte> bytes(source.bytes);
  const std::array<ConstRegion, 1> all = {source};
  Sources sources(all);
  for (uint64_t done = 0; done < source.bytes;) {
    const std::span part = device_copy_.staging.first(std::min(source.bytes - done, slot_bytes_));
    if (Status copied = sources.copy_next(part, device_copy_.copy); !copied)
      return std::unexpected(told(std::move(copied).error()));
    std::ranges::copy(part, bytes.begin() + static_cast<ptrdiff_t>(done));
    done += part.size();
  }
  return bytes;
}

Status AtomicWrite::commit() {
  Status committed = file_.commit();
  if (!committed) {
    Error error = std::move(committed).error();
    if (error.errno_value == ENOSPC || error.errno_value == EDQUOT) error.detail = free_space_at(path_);
    return std::unexpected(std::move(error));
  }
  return {};
}

}  // namespace headrace::checkpoint
