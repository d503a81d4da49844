// SPDX-License-Identifier: Apache-2.0
// The archive of torch.save that holds one piece of a DCP folder, checked while its bytes come by from front to back.
// One thread.
// Owns the directory and the pickle; borrows what it is to hold.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <headrace/verify.h>

#include "convert/dcp_folder.h"
#include "convert/elements.h"
#include "format/dcp_piece.h"
#include "format/torch_zip_reader.h"

namespace headrace::convert {

// That of a tensor has some hundred bytes; of an object all of it is in there. Read, it takes many times as much memory.
inline constexpr uint64_t kTensorPickleBytesMax = uint64_t{1} << 20;
inline constexpr uint64_t kObjectPickleBytesMax = uint64_t{16} << 20;

// Of one tensor, over all of its pieces.
struct DcpStats {
  ElementStats sum;
  std::string why_not;
};
[[nodiscard]] TensorStats stats_of(const format::DcpTensor& tensor, const DcpStats& found);

class DcpArchive {
 public:
  // `stats`: null where none are wanted.
  DcpArchive(std::vector<format::ZipEntry> entries, format::TorchZipContents contents, const DcpPlaced& placed,
             DcpStats* stats);

  // Bytes of the archive from `offset` on. False once there is a fault(): one of an archive is enough.
  [[nodiscard]] bool add(uint64_t offset, std::span<const std::byte> bytes);
  [[nodiscard]] const std::string& fault() const noexcept { return fault_; }
  // False: the writer left them out, and nothing was compared.
  [[nodiscard]] bool has_sums() const noexcept { return has_sums_; }
  // The first of its records that is compressed or encrypted, and was not looked at; empty: none.
  [[nodiscard]] std::string_view unread_record() const noexcept { return unread_; }
  // Once the whole archive came by: nothing if its pickle was not looked into.
  [[nodiscard]] const std::optional<format::DcpContent>& content() const noexcept { return content_; }

 private:
  [[nodiscard]] bool fail(std::string fault);
  void take(const format::ZipEntry& entry, std::span<const std::byte> bytes);
  [[nodiscard]] bool finish(const format::ZipEntry& entry);
  [[nodiscard]] bool read_pickle();
  void count(std::span<const std::byte> bytes);

  std::vector<format::ZipEntry> entries_;
  format::TorchZipContents contents_;
  std::vector<size_t> order_;  // of the entries, in the file
  const DcpPlaced* placed_;
  DcpStats* stats_;
  bool has_sums_ = false;
  std::string_view unread_;
  size_t at_ = 0;  // in order_: the entry whose bytes come next
  std::vector<std::byte> header_;
  std::optional<uint64_t> data_begin_;
  uint32_t sum_ = 0;
  std::vector<std::byte> pickle_;
  std::optional<format::DcpContent> content_;
  std::optional<size_t> counted_;  // the entry whose elements are counted
  std::vector<std::byte> cut_;     // of an element
  std::string fault_;
};

}  // namespace headrace::convert
