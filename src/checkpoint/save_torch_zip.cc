// SPDX-License-Identifier: Apache-2.0
// A torch zip archive. The sum of a record stands behind its data, so the file is written in two rounds: everything that does
// not wait for a sum, with large storages summed on the way; then the granules that hold sums.
// One thread beside the handle's.
// Owns the bytes between the records until they are written.
#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/align.h"
#include "base/crc32.h"
#include "checkpoint/atomic_write.h"
#include "format/torch_zip_layout.h"

namespace headrace {
namespace {

using checkpoint::AtomicWrite;
using checkpoint::Stretch;
using format::TorchZipLayout;

// Storages up to this are summed before they are sent: then they and the headers around them go in the first round.
constexpr uint64_t kSumFirstBytes = uint64_t{64} << 10;
// So much is sent at once: while it is written, the sums of what follows are made.
constexpr uint64_t kSendBytes = uint64_t{32} << 20;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
ConstRegion region_of(std::string_view text) { return {bytes_of(text).data(), text.size(), {}}; }
ConstRegion cut(const ConstRegion& region, uint64_t from, uint64_t to) {
  return {region.data + from, to - from, region.device};
}

// The file from front to back: data of a record, or what stands before it or behind the last one.
struct Piece {
  enum class Kind : uint8_t { before, data, behind_last } kind = Kind::data;
  size_t record = 0;
  uint64_t begin = 0, end = 0;
  bool late = false;  // made of sums that are known after the first round
};

struct Range {
  uint64_t begin = 0, end = 0;
};

class Writer {
 public:
  Writer(TorchZipLayout layout, const TorchArchive& archive, uint32_t alignment_bytes, uint64_t granule_bytes)
      : layout_(std::move(layout)),
        granule_bytes_(granule_bytes),
        data_(layout_.size()),
        sums_(layout_.size()),
        summed_later_(layout_.size()) {
    fill_data(archive, alignment_bytes);
    list_pieces();
    list_late_ranges();
  }

  Status run(AtomicWrite& file) {
    if (Status first = first_round(file); !first) return first;
    return second_round(file);
  }

 private:
  void fill_data(const TorchArchive& archive, uint32_t alignment_bytes) {
    for (size_t i = 0; i + 1 < layout_.size(); ++i) {
      const bool storage =
          i >= format::kTorchZipFirstStorage && i < format::kTorchZipFirstStorage + archive.storages.size();
      if (i == 0) {
        data_[i] = region_of(archive.pickle);
      } else if (storage) {
        data_[i] = archive.storages[i - format::kTorchZipFirstStorage];
      } else {
        data_[i] = region_of(texts_.emplace_back(format::torch_zip_contents(layout_.record(i), alignment_bytes)));
      }
      const bool on_host = data_[i].device.kind == DeviceKind::host;
      summed_later_[i] = storage && data_[i].bytes > (on_host ? kSumFirstBytes : 0);
      any_later_ |= summed_later_[i];
    }
  }

  void list_pieces() {
    uint64_t position = 0;
    const auto add = [&](Piece::Kind kind, size_t record, uint64_t end, bool late) {
      if (end > position)
        pieces_.push_back({.kind = kind, .record = record, .begin = position, .end = end, .late = late});
      position = end;
    };
    const size_t last = layout_.size() - 1;
    for (size_t i = 0; i <= last; ++i) {
      add(Piece::Kind::before, i, layout_.data_begin(i), i > 0 && summed_later_[i - 1]);
      add(Piece::Kind::data, i, layout_.data_end(i), i == last && any_later_);
    }
    add(Piece::Kind::behind_last, last, layout_.file_bytes(), any_later_);
  }

  // Whole granules, so that both rounds are written past the page cache.
  void list_late_ranges() {
    for (const Piece& piece : pieces_) {
      if (!piece.late) continue;
      const uint64_t begin = base::align_down(piece.begin, granule_bytes_);
      const uint64_t end = std::min(base::align_up(piece.end, granule_bytes_), layout_.file_bytes());
      if (!late_.empty() && begin <= late_.back().end) {
        late_.back().end = std::max(late_.back().end, end);
      } else {
        late_.push_back({begin, end});
      }
    }
  }

  // The bytes of a piece that is not late, or once the sums are known.
  ConstRegion region(const Piece& piece) {
    switch (piece.kind) {
      case Piece::Kind::data: return data_[piece.record];
      case Piece::Kind::before:
        return region_of(
            texts_.emplace_back(layout_.before(piece.record, piece.record > 0 ? sums_[piece.record - 1] : 0)));
      case Piece::Kind::behind_last: break;
    }
    return region_of(texts_.emplace_back(layout_.behind_last(sums_)));
  }

  // What must be known before the piece is looked at: the sum of its record, which stands behind it.
  void sum_first(const Piece& piece) {
    if (piece.kind != Piece::Kind::data || summed_later_[piece.record]) return;
    if (piece.record == layout_.size() - 1) return finish_sums();
    const ConstRegion& data = data_[piece.record];
    sums_[piece.record] = base::crc32(std::span(data.data, data.bytes));
  }

  Status first_round(AtomicWrite& file) {
    std::vector<Stretch> stretches;
    struct Summed {
      const Piece* piece;
      uint64_t end;
    };
    std::vector<Summed> summed;      // the stretches that are summed on the way, in order
    uint64_t open_end = UINT64_MAX;  // where the last stretch ends, if more may be added to it
    uint64_t collected_bytes = 0;
    size_t next_late = 0;
    for (const Piece& piece : pieces_) {
      if (piece.late) continue;
      if (collected_bytes >= kSendBytes && base::is_aligned(piece.begin, granule_bytes_)) {
        if (Status started = file.start(stretches); !started) return started;
        stretches.clear();
        open_end = UINT64_MAX;
        collected_bytes = 0;
      }
      sum_first(piece);
      const ConstRegion whole = region(piece);
      const bool sum = piece.kind == Piece::Kind::data && summed_later_[piece.record];
      uint64_t position = piece.begin;
      while (position < piece.end) {
        while (next_late < late_.size() && late_[next_late].end <= position)
          ++next_late;
        const bool more_late = next_late < late_.size();
        if (more_late && late_[next_late].begin <= position) {
          position = std::min(piece.end, late_[next_late].end);
          continue;
        }
        const uint64_t end = more_late ? std::min(piece.end, late_[next_late].begin) : piece.end;
        if (sum || position != open_end) {
          stretches.push_back(
              {.offset_bytes = position, .sources = {}, .checksum = sum ? Checksum::crc32 : Checksum::none});
          if (sum) summed.push_back({&piece, end});
        }
        stretches.back().sources.push_back(cut(whole, position - piece.begin, end - piece.begin));
        collected_bytes += end - position;
        open_end = sum ? UINT64_MAX : end;
        position = end;
      }
    }
    if (Status started = file.start(stretches); !started) return started;
    const Result<std::vector<uint32_t>> sums = file.finish();
    if (!sums) return std::unexpected(sums.error());
    for (size_t i = 0; i < summed.size(); ++i) {
      const Piece& piece = *summed[i].piece;
      sums_[piece.record] ^= base::crc32_contribution((*sums)[i], piece.end - summed[i].end);
    }
    return {};
  }

  // Parts of large storages that share a granule with a sum are summed here; what is on a device is brought for it.
  Status sum_what_lies_in_late_ranges(AtomicWrite& file) {
    size_t next = 0;
    for (const Piece& piece : pieces_) {
      if (piece.kind != Piece::Kind::data || !summed_later_[piece.record]) continue;
      while (next < late_.size() && late_[next].end <= piece.begin)
        ++next;
      for (size_t i = next; i < late_.size() && late_[i].begin < piece.end; ++i) {
        const uint64_t begin = std::max(piece.begin, late_[i].begin);
        const uint64_t end = std::min(piece.end, late_[i].end);
        ConstRegion part = cut(data_[piece.record], begin - piece.begin, end - piece.begin);
        if (part.device.kind != DeviceKind::host) {
          Result<std::vector<std::byte>> bytes = file.fetch(part);
          if (!bytes) return std::unexpected(std::move(bytes).error());
          const std::vector<std::byte>& kept = fetched_.emplace_back(*std::move(bytes));
          part = {kept.data(), kept.size(), {}};
        }
        late_data_.push_back(part);
        sums_[piece.record] ^= base::crc32_contribution(base::crc32(std::span(part.data, part.bytes)), piece.end - end);
      }
    }
    return {};
  }

  // Of the last record, which is made of the others'.
  void finish_sums() {
    const size_t last = layout_.size() - 1;
    data_[last] = region_of(texts_.emplace_back(format::torch_zip_serialization_id(layout_, sums_)));
    sums_[last] = base::crc32(std::span(data_[last].data, data_[last].bytes));
  }

  Status second_round(AtomicWrite& file) {
    if (late_.empty()) return {};
    if (Status summed = sum_what_lies_in_late_ranges(file); !summed) return summed;
    finish_sums();
    std::vector<Stretch> stretches;
    size_t next = 0;       // first piece that may lie in the range
    size_t next_late = 0;  // of late_data_
    for (const Range& range : late_) {
      Stretch& stretch = stretches.emplace_back();
      stretch.offset_bytes = range.begin;
      while (pieces_[next].end <= range.begin)
        ++next;
      for (size_t i = next; i < pieces_.size() && pieces_[i].begin < range.end; ++i) {
        const Piece& piece = pieces_[i];
        if (piece.kind == Piece::Kind::data && summed_later_[piece.record]) {
          stretch.sources.push_back(late_data_[next_late++]);
          continue;
        }
        const uint64_t begin = std::max(piece.begin, range.begin);
        stretch.sources.push_back(
            cut(region(piece), begin - piece.begin, std::min(piece.end, range.end) - piece.begin));
      }
    }
    if (Status started = file.start(stretches); !started) return started;
    const Result<std::vector<uint32_t>> done = file.finish();
    return done ? Status{} : std::unexpected(done.error());
  }

  TorchZipLayout layout_;
  uint64_t granule_bytes_;
  std::vector<ConstRegion> data_;
  std::vector<uint32_t> sums_;
  std::vector<bool> summed_later_;
  bool any_later_ = false;
  std::vector<Piece> pieces_;           // in the order of the file, without a gap
  std::vector<Range> late_;             // for the second round, in order
  std::vector<ConstRegion> late_data_;  // parts of storages that lie there, in order
  std::deque<std::vector<std::byte>> fetched_;
  std::deque<std::string> texts_;
};

}  // namespace

Result<uint64_t> save_torch_zip(Handle& handle, const std::string& path, const TorchArchive& archive,
                                const SaveOptions& options) {
  std::vector<uint64_t> sizes;
  sizes.reserve(archive.storages.size());
  for (const ConstRegion& storage : archive.storages)
    sizes.push_back(storage.bytes);
  Result<TorchZipLayout> layout = TorchZipLayout::create(
      format::torch_zip_archive_name(path),
      format::torch_zip_records(archive.pickle.size(), sizes, options.alignment_bytes), options.alignment_bytes);
  if (!layout) {
    layout.error().path = path;
    return std::unexpected(std::move(layout).error());
  }
  const uint64_t file_bytes = layout->file_bytes();
  Result<AtomicWrite> file = AtomicWrite::create(handle, path, file_bytes, options);
  if (!file) return std::unexpected(std::move(file).error());
  Writer writer(*std::move(layout), archive, options.alignment_bytes, file->granule_bytes());
  if (Status written = writer.run(*file); !written) return std::unexpected(std::move(written).error());
  if (Status committed = file->commit(); !committed) return std::unexpected(std::move(committed).error());
  return file_bytes;
}

}  // namespace headrace
