// SPDX-License-Identifier: Apache-2.0
// Records against their sums, and the pickle, which torch writes in front of the storage, against the metadata.
// See the header for threads.
// Owns what the header says.
#include "convert/dcp_archive.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <headrace/inspect.h>

#include "base/crc32.h"
#include "format/format_error.h"

namespace headrace::convert {
namespace {

using format::ZipEntry;

bool is_stored(const ZipEntry& entry) { return entry.method == 0 && (entry.flags & format::kZipFlagsUnreadable) == 0; }

// Each element of a storage of `elements` once, in whatever order.
bool fills_storage(const format::DcpContent& content, uint64_t elements) {
  std::vector<size_t> dimensions;
  for (size_t d = 0; d < content.shape.size(); ++d)
    if (content.shape[d] != 1) dimensions.push_back(d);
  std::ranges::sort(dimensions, {}, [&](size_t d) { return content.strides[d]; });
  uint64_t expected = 1;
  for (const size_t d : dimensions)
    if (content.strides[d] != expected || __builtin_mul_overflow(expected, content.shape[d], &expected)) return false;
  return content.first_element == 0 && expected == elements;
}

}  // namespace

DcpArchive::DcpArchive(std::vector<ZipEntry> entries, format::TorchZipContents contents, const DcpPlaced& placed,
                       DcpStats* stats)
    : entries_(std::move(entries)), contents_(std::move(contents)), placed_(&placed), stats_(stats) {
  has_sums_ = std::ranges::any_of(entries_, [](const ZipEntry& entry) { return entry.sum != 0; });
  for (size_t i = 0; i < entries_.size(); ++i)
    order_.push_back(i);
  std::ranges::sort(order_, {}, [&](size_t i) { return std::pair(entries_[i].header_begin, i); });
  const auto unread = std::ranges::find_if_not(entries_, is_stored);
  if (unread != entries_.end()) unread_ = unread->name;
}

bool DcpArchive::fail(std::string fault) {
  fault_ = std::move(fault);
  if (stats_ != nullptr) stats_->why_not = "a piece of it is damaged";
  return false;
}

bool DcpArchive::add(uint64_t offset, std::span<const std::byte> bytes) {
  while (at_ < order_.size()) {
    const ZipEntry& entry = entries_[order_[at_]];
    if (!data_begin_) {
      // The header, and then the name and extra field that it tells the lengths of.
      const uint64_t begin = entry.header_begin + header_.size();
      if (offset + bytes.size() <= begin) return true;
      const uint64_t missing = format::kZipLocalHeaderBytes - header_.size();
      const std::span<const std::byte> there = bytes.subspan(begin - offset);
      header_.insert(header_.end(), there.begin(),
                     there.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(missing, there.size())));
      if (header_.size() < format::kZipLocalHeaderBytes) return true;
      const Result<uint64_t> found = format::zip_data_begin(entry, header_);
      if (!found) return fail(found.error().detail);
      data_begin_ = *found;
    }
    const uint64_t end = *data_begin_ + entry.bytes;
    const uint64_t from = std::max(offset, *data_begin_), to = std::min(offset + bytes.size(), end);
    if (from < to && is_stored(entry)) take(entry, bytes.subspan(from - offset, to - from));
    if (offset + bytes.size() < end) return true;
    if (is_stored(entry) && !finish(entry)) return false;
    ++at_;
    header_.clear();
    data_begin_.reset();
    sum_ = 0;
  }
  return true;
}

void DcpArchive::take(const ZipEntry& entry, std::span<const std::byte> bytes) {
  if (has_sums_) sum_ = base::crc32(bytes, sum_);
  const size_t index = order_[at_];
  const uint64_t pickle_bytes_max = placed_->tensor != nullptr ? kTensorPickleBytesMax : kObjectPickleBytesMax;
  if (index == contents_.pickle && entry.bytes <= pickle_bytes_max)
    pickle_.insert(pickle_.end(), bytes.begin(), bytes.end());
  if (counted_ == index) count(bytes);
}

bool DcpArchive::finish(const ZipEntry& entry) {
  if (has_sums_ && sum_ != entry.sum)
    return fail(fmt::format(
        "the CRC-32 of its record {} is {:08x}, and the archive says {:08x}: it was damaged after it was written",
        format::quote_name(entry.name), sum_, entry.sum));
  return order_[at_] != contents_.pickle || read_pickle();
}

bool DcpArchive::read_pickle() {
  const std::vector<std::byte> bytes = std::exchange(pickle_, {});
  const bool whole = bytes.size() == entries_[contents_.pickle].bytes;
  if (!whole && placed_->tensor != nullptr) return fail("the pickle of its archive is larger than that of any tensor");
  if (!whole) return true;
  const Result<Pickle> pickle =
      parse_pickle(bytes, {.unknown_globals = UnknownGlobals::collect, .protocols = PickleProtocols::later});
  if (!pickle) {
    // Objects may be anything that Python can pickle.
    if (placed_->tensor == nullptr) return true;
    return fail(fmt::format("the pickle of its archive is none of a tensor: {}", pickle.error().detail));
  }
  content_ = format::describe_dcp_piece(*pickle);
  if (std::string fault = format::compare_dcp_piece(*content_, placed_->tensor, placed_->piece); !fault.empty())
    return fail(std::move(fault));
  if (placed_->tensor == nullptr || content_->kind != format::DcpContent::Kind::tensor) return true;
  const std::optional<size_t> storage = contents_.find_storage(entries_, content_->storage_key);
  if (!storage)
    return fail(fmt::format("its archive has no record of the storage {}", format::quote_name(content_->storage_key)));
  const ZipEntry& entry = entries_[*storage];
  const bool packed = content_->dtype_name == "quint4x2" || content_->dtype_name == "quint2x4";
  if (!packed && is_stored(entry) && entry.bytes != content_->storage_bytes)
    return fail(fmt::format("record {} of its archive has {} bytes, and its pickle says {}",
                            format::quote_name(entry.name), entry.bytes, content_->storage_bytes));
  if (stats_ == nullptr || !is_stored(entry) || !placed_->tensor->dtype) return true;
  // One that came by already is counted no more, and is missing in the sum.
  const uint64_t element_bytes = dtype_facts(*placed_->tensor->dtype).torch_bytes;
  if (element_bytes != 0 && fills_storage(*content_, entry.bytes / element_bytes) && !content_->turned)
    counted_ = storage;
  return true;
}

void DcpArchive::count(std::span<const std::byte> bytes) {
  const DType dtype = *placed_->tensor->dtype;
  const size_t width = stats_element_bytes(dtype);
  if (width == 0) return;
  if (!cut_.empty()) {
    const size_t missing = std::min(width - cut_.size(), bytes.size());
    cut_.insert(cut_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(missing));
    bytes = bytes.subspan(missing);
    if (cut_.size() < width) return;
    add_stats(dtype, cut_, stats_->sum);
    cut_.clear();
  }
  const size_t whole = bytes.size() / width * width;
  add_stats(dtype, bytes.first(whole), stats_->sum);
  cut_.assign(bytes.begin() + static_cast<ptrdiff_t>(whole), bytes.end());
}

TensorStats stats_of(const format::DcpTensor& tensor, const DcpStats& found) {
  TensorStats told = {.name = tensor.name, .dtype = tensor.dtype.value_or(DType::uint8), .why_not = found.why_not};
  const uint32_t width = tensor.dtype ? stats_element_bytes(*tensor.dtype) : 0;
  const uint64_t parts = width == 0 ? 1 : dtype_facts(told.dtype).torch_bytes / width;
  if (told.why_not.empty() && !tensor.dtype) told.why_not = "its element type is not known here";
  if (told.why_not.empty() && width == 0) told.why_not = "elements of less than a byte are not counted";
  if (told.why_not.empty() && found.sum.elements / parts != element_count(tensor.shape))
    told.why_not =
        "not all of its pieces are whole, uncompressed archives of torch.save with plain elements side by side";
  if (!told.why_not.empty()) return told;
  told.elements = found.sum.elements;
  told.nan = found.sum.nan;
  told.inf = found.sum.inf;
  told.zero = found.sum.zero;
  if (found.sum.min <= found.sum.max) {
    told.min = found.sum.min;
    told.max = found.sum.max;
  }
  return told;
}

}  // namespace headrace::convert
