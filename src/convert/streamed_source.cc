// SPDX-License-Identifier: Apache-2.0
// One line of bytes, all items behind each other, of which a writer asks for stretches; what it left out on its way it asks
// for later (a zip archive's sums are written last, with the bytes beside them).
// See the header for threads.
// Owns what the header says.
#include "convert/streamed_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headrace::convert {
namespace {

// Addresses that nothing can be mistaken for: the first page is never mapped.
constexpr uint64_t kAddressOfFirst = 4096;
constexpr uint64_t kKeptBytesMax = uint64_t{64} << 20;

std::unexpected<Error> ended() {
  return std::unexpected(Error{
      .code = ErrorCode::end_of_file, .operation = "read", .detail = "the source ends before what it should hold"});
}

}  // namespace

StreamedSource::StreamedSource(const std::vector<uint64_t>& sizes, Open open) : open_(std::move(open)) {
  uint64_t begin = 0;
  for (const uint64_t size : sizes) {
    begins_.push_back(begin);
    begin += size;
  }
  begins_.push_back(begin);
}

ConstRegion StreamedSource::region(size_t i) const {
  const uint64_t address = kAddressOfFirst + begins_[i];
  return {.data = reinterpret_cast<const std::byte*>(address),
          .bytes = begins_[i + 1] - begins_[i],
          .device = {.kind = DeviceKind::other, .index = 0}};
}

std::function<Status(const ConstRegion&, std::span<std::byte>)> StreamedSource::copier() {
  return [this](const ConstRegion& source, std::span<std::byte> target) {
    return copy(reinterpret_cast<uint64_t>(source.data) - kAddressOfFirst, target);
  };
}

Status StreamedSource::copy(uint64_t position, std::span<std::byte> target) {
  if (!stream_) {
    Result<Stream> stream = open_at(0);
    if (!stream) return std::unexpected(std::move(stream).error());
    stream_ = *std::move(stream);
  }
  if (position < stream_->position) return copy_passed(position, target);
  if (Status there = advance(*stream_, position, Keep::what_fits); !there) return there;
  return take(*stream_, target);
}

Status StreamedSource::copy_passed(uint64_t position, std::span<std::byte> target) {
  const auto behind = kept_.upper_bound(position);
  if (behind != kept_.begin()) {
    const auto& [begin, bytes] = *std::prev(behind);
    if (position - begin <= bytes.size() && target.size() <= bytes.size() - (position - begin)) {
      std::memcpy(target.data(), bytes.data() + (position - begin), target.size());
      return {};
    }
  }
  // Not kept, or only in part: once more from the start of the item, and on from there for what follows it.
  if (!again_ || position < again_->position) {
    Result<Stream> again = open_at(item_at(position));
    if (!again) return std::unexpected(std::move(again).error());
    again_ = *std::move(again);
  }
  if (Status there = advance(*again_, position, Keep::nothing); !there) return there;
  return take(*again_, target);
}

Status StreamedSource::take(Stream& stream, std::span<std::byte> target) {
  while (!target.empty()) {
    if (Status more = need(stream); !more) return more;
    const size_t bytes = std::min(target.size(), stream.rest.size());
    std::memcpy(target.data(), stream.rest.data(), bytes);
    target = target.subspan(bytes);
    stream.rest = stream.rest.subspan(bytes);
    stream.position += bytes;
  }
  return {};
}

Status StreamedSource::advance(Stream& stream, uint64_t position, Keep keep) {
  while (stream.position < position) {
    if (Status more = need(stream); !more) return more;
    const uint64_t bytes = std::min<uint64_t>(position - stream.position, stream.rest.size());
    if (keep == Keep::what_fits && bytes <= kKeptBytesMax - kept_bytes_) {
      const std::span<const std::byte> passed = stream.rest.first(bytes);
      // One stretch, where pieces of it follow each other.
      const auto last = kept_.empty() ? kept_.end() : std::prev(kept_.end());
      if (last != kept_.end() && last->first + last->second.size() == stream.position)
        last->second.insert(last->second.end(), passed.begin(), passed.end());
      else
        kept_.emplace(stream.position, std::vector<std::byte>(passed.begin(), passed.end()));
      kept_bytes_ += bytes;
    }
    stream.rest = stream.rest.subspan(bytes);
    stream.position += bytes;
  }
  return {};
}

Status StreamedSource::need(Stream& stream) {
  if (!stream.rest.empty()) return {};
  const Result<std::optional<Piece>> piece = stream.next();
  if (!piece) return std::unexpected(piece.error());
  if (!*piece) return ended();
  stream.position = begins_[stream.first_item + (*piece)->item] + (*piece)->offset_bytes;
  stream.rest = (*piece)->bytes;
  return {};
}

Result<StreamedSource::Stream> StreamedSource::open_at(size_t item) {
  Result<Next> next = open_(item);
  if (!next) return std::unexpected(std::move(next).error());
  return Stream{.next = *std::move(next), .first_item = item, .position = begins_[item], .rest = {}};
}

size_t StreamedSource::item_at(uint64_t position) const {
  return static_cast<size_t>(std::ranges::upper_bound(begins_, position) - begins_.begin()) - 1;
}

}  // namespace headrace::convert
