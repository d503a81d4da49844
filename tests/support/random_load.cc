// SPDX-License-Identifier: Apache-2.0
// A batch: draw, submit alone or together, disturb, collect, compare.
#include "tests/support/random_load.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/crc32.h"

namespace headrace::test {
namespace {

constexpr std::byte kCanary{0xA5};
constexpr uint64_t kCanaryBytes = 64;
constexpr uint64_t kArenaBytes = 3U << 20;

}  // namespace

std::byte pattern_at(uint64_t offset) noexcept {
  return static_cast<std::byte>((offset * 0x9E3779B97F4A7C15U) >> 56 ^ offset);
}

std::vector<std::byte> pattern(uint64_t bytes) {
  std::vector<std::byte> all(bytes);
  for (uint64_t i = 0; i < bytes; ++i)
    all[i] = pattern_at(i);
  return all;
}

class RandomLoad::Impl {
 public:
  Impl(Handle& handle, RandomLoadOptions options)
      : handle_(handle), options_(std::move(options)), random_(options_.seed) {
    model_ = options_.read_back(options_.span_begin, options_.span_bytes);
    model_.resize(options_.span_bytes);
    heap_.resize(kArenaBytes);
    if (Result<Buffer> buffer = Buffer::create(kArenaBytes)) buffer_ = *std::move(buffer);
  }

  std::vector<std::string> run_batch() {
    complaints_.clear();
    draw_batch();
    if (one_in(2)) options_.hold();
    submit();
    disturb();
    options_.release();
    collect();
    verify_written();
    verify_canaries();
    return std::move(complaints_);
  }

  RandomLoadCounts counts_;

 private:
  struct Request {
    bool write = false;
    uint64_t offset = 0;
    uint64_t length = 0;
    std::vector<Region> regions;
    int priority = 0;
    CopyMode copy = CopyMode::automatic;
    CacheMode cache = CacheMode::automatic;
    Durability durability = Durability::none;
    EndOfFile end_of_file = EndOfFile::is_an_error;
    Checksum checksum = Checksum::none;
    Transfer transfer;
    bool cancelled = false;    // cancel() said so
    bool aborted = false;      // abort() was called
    uint64_t known_bytes = 0;  // written for certain, from the start
    bool untouched = false;    // written nothing for certain
  };

  uint64_t below(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }

  void complain(std::string text) {
    if (complaints_.size() < 8) complaints_.push_back(fmt::format("seed {}: {}", options_.seed, std::move(text)));
  }

  uint64_t draw_length() {
    if (one_in(30)) return 0;
    static constexpr uint64_t kEdges[] = {1, 511, 512, 513, 4095, 4096, 4097, 8192, 65536, 65537, 131072};
    uint64_t length = one_in(3) ? kEdges[below(std::size(kEdges))] : below(uint64_t{1} << (below(19) + 1)) + 1;
    return std::min(length, options_.length_max);
  }

  // Memory from one of the two arenas, between canaries; `length` bytes in one or several regions.
  void draw_memory(Request& request) {
    uint64_t left = request.length;
    if (left == 0 && one_in(2)) return;
    do {
      const uint64_t bytes = one_in(4) && left > 1 ? below(left - 1) + 1 : left;
      const bool in_buffer = buffer_.bytes() != 0 && one_in(2);
      std::byte* arena = in_buffer ? buffer_.data() : heap_.data();
      uint64_t& used = in_buffer ? buffer_used_ : heap_used_;
      uint64_t begin = used + kCanaryBytes;
      if (!one_in(4)) {
        begin = (begin + 4095) / 4096 * 4096;  // the buffer's start is aligned, so this is
        if (!in_buffer) begin += static_cast<uint64_t>(-reinterpret_cast<intptr_t>(arena) & 4095);
        if (one_in(3)) begin += request.offset % 4096;
      } else {
        begin += below(64);
      }
      if (begin + bytes + kCanaryBytes > kArenaBytes) {
        request.length -= left;  // the arena is full: a shorter request
        return;
      }
      request.regions.push_back({.data = arena + begin, .bytes = bytes, .device = {}});
      used = begin + bytes;
      left -= bytes;
    } while (left != 0);
  }

  void draw_batch() {
    requests_.clear();
    buffer_used_ = heap_used_ = 0;
    std::fill(heap_.begin(), heap_.end(), kCanary);
    std::memset(buffer_.data(), static_cast<int>(kCanary), buffer_.bytes());
    const uint64_t count = below(options_.requests_max) + 1;
    uint64_t write_at = below(std::min<uint64_t>(options_.span_bytes, 20'000));
    for (uint64_t i = 0; i < count; ++i) {
      Request request;
      request.write = one_in(2);
      request.length = draw_length();
      if (request.write) {
        if (one_in(3)) write_at += below(5000);  // otherwise the ranges touch
        if (write_at + request.length > options_.span_bytes) continue;
        request.offset = options_.span_begin + write_at;
      } else {
        request.offset = one_in(20) ? options_.read_file_bytes + below(100'000) : below(options_.read_file_bytes);
        if (one_in(3)) request.offset = request.offset / 4096 * 4096;
        if (!requests_.empty() && !requests_.back().write && one_in(2))
          request.offset = requests_.back().offset + requests_.back().length;
      }
      draw_memory(request);
      if (request.write) write_at += request.length;
      request.priority = one_in(2) ? 0 : static_cast<int>(below(256)) - 128;
      request.copy = one_in(2) ? CopyMode::automatic : static_cast<CopyMode>(below(3));
      request.cache = one_in(2) ? CacheMode::automatic : static_cast<CacheMode>(below(3));
      request.durability = one_in(4) ? Durability::data : Durability::none;
      request.end_of_file = one_in(2) ? EndOfFile::is_a_count : EndOfFile::is_an_error;
      request.checksum = one_in(2) ? Checksum::crc32 : Checksum::none;
      if (request.write) {
        for (const Region& region : request.regions) {
          for (uint64_t k = 0; k < region.bytes; ++k)
            region.data[k] = static_cast<std::byte>(random_());
        }
      }
      requests_.push_back(std::move(request));
    }
  }

  ReadItem read_item(const Request& request) const {
    ReadItem item = {.file = options_.read_file,
                     .request = {.offset_bytes = request.offset,
                                 .priority = request.priority,
                                 .copy = request.copy,
                                 .cache = request.cache,
                                 .end_of_file = request.end_of_file,
                                 .checksum = request.checksum}};
    if (!request.regions.empty()) {
      item.request.target = request.regions[0];
      item.request.targets = std::span(request.regions).subspan(1);
    }
    return item;
  }

  WriteItem write_item(const Request& request, std::vector<ConstRegion>& more) const {
    WriteItem item = {.file = options_.write_file,
                      .request = {.offset_bytes = request.offset,
                                  .priority = request.priority,
                                  .copy = request.copy,
                                  .durability = request.durability,
                                  .checksum = request.checksum}};
    if (!request.regions.empty())
      item.request.source = {.data = request.regions[0].data, .bytes = request.regions[0].bytes, .device = {}};
    for (size_t i = 1; i < request.regions.size(); ++i)
      more.push_back({.data = request.regions[i].data, .bytes = request.regions[i].bytes, .device = {}});
    item.request.sources = more;
    return item;
  }

  void submit() {
    const bool together = one_in(2);
    std::vector<ReadItem> reads;
    std::vector<WriteItem> writes;
    std::vector<std::vector<ConstRegion>> more(requests_.size());
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i].write) {
        writes.push_back(write_item(requests_[i], more[i]));
      } else {
        reads.push_back(read_item(requests_[i]));
      }
    }
    const auto take = [&](Result<std::vector<Transfer>> transfers, bool write) {
      if (!transfers) return complain("a submission failed: " + transfers.error().message());
      size_t next = 0;
      for (Request& request : requests_) {
        if (request.write == write) request.transfer = (*transfers)[next++];
      }
    };
    if (together) {
      take(handle_.read_many(reads), false);
      take(handle_.write_many(writes), true);
      return;
    }
    size_t next_read = 0;
    size_t next_write = 0;
    for (Request& request : requests_) {
      Result<Transfer> transfer = request.write ? handle_.write(options_.write_file, writes[next_write].request)
                                                : handle_.read(options_.read_file, reads[next_read].request);
      request.write ? ++next_write : ++next_read;
      if (!transfer) {
        complain("a submission failed: " + transfer.error().message());
      } else {
        request.transfer = *transfer;
      }
    }
  }

  void disturb() {
    const bool quiet = one_in(3);
    for (Request& request : requests_) {
      if (quiet) break;
      if (one_in(8)) request.cancelled = request.transfer.cancel();
      if (one_in(8)) {
        request.aborted = true;
        request.transfer.abort();
      }
    }
    if (one_in(4) && !requests_.empty()) {
      std::vector<Transfer> all;
      for (const Request& request : requests_)
        all.push_back(request.transfer);
      const size_t done =
          wait(all, one_in(2) ? WaitFor::any : WaitFor::first_error, std::chrono::microseconds(below(500)));
      if (done > all.size()) complain("wait() counts more transfers than there are");
    }
  }

  // A transfer that moved every byte tells their sum if it was asked to; any other tells none.
  void judge_sum(const Request& request, const Result<uint64_t>& result) {
    const std::optional<uint32_t> sum = request.transfer.crc32();
    const bool whole = result.has_value() && *result == request.length && request.checksum == Checksum::crc32;
    if (sum.has_value() != whole) return complain("a checksum is there that should not be, or is missing");
    if (!whole) return;
    uint32_t expected = 0;
    for (const Region& region : request.regions)
      expected = base::crc32(std::span(region.data, region.bytes), expected);
    if (*sum != expected)
      complain(fmt::format("{} of {} bytes at {}: the sum is {:08x}, not {:08x}", request.write ? "write" : "read",
                           request.length, request.offset, *sum, expected));
    ++counts_.sums;
  }

  void collect() {
    std::vector<size_t> order(requests_.size());
    for (size_t i = 0; i < order.size(); ++i)
      order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (size_t i : order) {
      Request& request = requests_[i];
      if (!request.transfer.internal()) continue;  // complained about before
      if (one_in(3)) {
        const Result<uint64_t> early = request.transfer.result_for(std::chrono::microseconds(below(200)));
        if (!early && early.error().code == ErrorCode::timed_out) ++counts_.timeouts;
      }
      // A lost completion is a failure, not a hang.
      const Result<uint64_t> result = request.transfer.result_for(std::chrono::seconds(120));
      if (!result && result.error().code == ErrorCode::timed_out) {
        complain("a transfer was not done in two minutes");
        continue;
      }
      judge(request, result);
      judge_sum(request, result);
      if (!request.transfer.done() || request.transfer.running()) complain("a transfer with a result is not done");
      if (request.transfer.cancelled() != request.cancelled) complain("cancelled() and cancel() differ");
      if (!same(result, request.transfer.result())) complain("the second result differs from the first");
    }
  }

  static bool same(const Result<uint64_t>& a, const Result<uint64_t>& b) {
    return a.has_value() == b.has_value() && (a.has_value() ? *a == *b : a.error().message() == b.error().message());
  }

  std::string name(const Request& request) const {
    return fmt::format("{} of [{}, {})", request.write ? "write" : "read", request.offset,
                       request.offset + request.length);
  }

  void judge(Request& request, const Result<uint64_t>& result) {
    ++counts_.requests;
    const uint64_t until_end =
        request.offset >= options_.read_file_bytes ? 0 : options_.read_file_bytes - request.offset;
    const uint64_t there = request.write ? request.length : std::min(request.length, until_end);
    if (result) {
      counts_.bytes += *result;
      const bool full = *result == request.length || (*result == there && request.end_of_file == EndOfFile::is_a_count);
      if (!full) complain(fmt::format("{} gave {} bytes of {}", name(request), *result, there));
      if (request.cancelled) complain(name(request) + " was cancelled and has a result");
      if (request.write) request.known_bytes = request.length;
      check_read(request, *result);
      check_route(request, *result);
      return;
    }
    const Error& error = result.error();
    if (error.transferred_bytes > there)
      complain(fmt::format("{} failed with {} bytes of {} moved", name(request), error.transferred_bytes, there));
    if (error.offset_bytes != request.offset || error.length_bytes != request.length)
      complain(name(request) + ": the error names another range: " + error.message());
    request.known_bytes = error.transferred_bytes;
    check_read(request, error.transferred_bytes);
    switch (error.code) {
      case ErrorCode::cancelled:
        ++counts_.cancelled;
        request.untouched = true;
        if (!request.cancelled) complain(name(request) + " says cancelled, and cancel() did not");
        if (error.transferred_bytes != 0) complain(name(request) + " was cancelled with bytes moved");
        for (const Region& region : request.regions) {
          if (!request.write &&
              std::any_of(region.data, region.data + region.bytes, [](std::byte byte) { return byte != kCanary; }))
            complain(name(request) + " was cancelled and its memory touched");
        }
        return;
      case ErrorCode::aborted:
        ++counts_.aborted;
        if (!request.aborted) complain(name(request) + " says aborted, and nobody did");
        return;
      case ErrorCode::end_of_file:
        ++counts_.ended;
        if (request.write || there == request.length || request.end_of_file == EndOfFile::is_a_count)
          complain(name(request) + " met no end of file: " + error.message());
        if (error.transferred_bytes != there && !request.aborted)
          complain(name(request) + " stopped short of the end of file: " + error.message());
        return;
      default:
        ++counts_.failed;
        if (!options_.may_fail(error)) complain(name(request) + " failed: " + error.message());
    }
  }

  void check_route(const Request& request, uint64_t moved) {
    const std::optional<Route> route = request.transfer.route();
    if (!route) return complain(name(request) + " is done and has no route");
    if (route->direct_bytes + route->buffered_bytes != moved) {
      complain(fmt::format("{}: {} direct and {} buffered bytes are not the {} moved", name(request),
                           route->direct_bytes, route->buffered_bytes, moved));
    }
    if (request.copy == CopyMode::never && route->staged_bytes != 0)
      complain(name(request) + " was staged in spite of copy=never");
    if (request.copy == CopyMode::always && route->staged_bytes != moved)
      complain(name(request) + " was not staged in spite of copy=always");
  }

  void check_read(const Request& request, uint64_t bytes) {
    if (request.write) return;
    uint64_t offset = request.offset;
    for (const Region& region : request.regions) {
      for (uint64_t i = 0; i < region.bytes; ++i, ++offset) {
        if (offset - request.offset >= bytes) return;
        if (region.data[i] != pattern_at(offset))
          return complain(
              fmt::format("{} has a wrong byte at {} (of {} moved)", name(request), offset - request.offset, bytes));
      }
    }
  }

  void verify_written() {
    std::vector<std::byte> actual = options_.read_back(options_.span_begin, options_.span_bytes);
    actual.resize(options_.span_bytes);
    std::vector<std::byte> wanted = model_;
    for (const Request& request : requests_) {
      if (!request.write || request.untouched) continue;
      uint64_t at = request.offset - options_.span_begin;
      const uint64_t begin = at;
      for (const Region& region : request.regions) {
        for (uint64_t i = 0; i < region.bytes; ++i, ++at) {
          // What a failed write did behind its prefix is either of the two.
          if (at - begin < request.known_bytes || actual[at] == region.data[i]) wanted[at] = region.data[i];
        }
      }
    }
    if (actual != wanted) {
      const auto wrong = std::ranges::mismatch(actual, wanted).in1 - actual.begin();
      const auto at = static_cast<uint64_t>(wrong) + options_.span_begin;
      std::string who = "no request's";
      for (const Request& request : requests_) {
        if (request.write && request.offset <= at && at < request.offset + request.length) who = name(request);
      }
      complain(fmt::format("the file has a wrong byte at {} ({}), written {}", at, who,
                           static_cast<int>(actual[static_cast<size_t>(wrong)])));
    }
    model_ = std::move(actual);
  }

  void verify_canaries() {
    verify_canaries(heap_.data());
    if (buffer_.bytes() != 0) verify_canaries(buffer_.data());
  }

  void verify_canaries(const std::byte* arena) {
    std::vector<Region> regions;
    for (const Request& request : requests_) {
      for (const Region& region : request.regions) {
        if (region.data >= arena && region.data < arena + kArenaBytes) regions.push_back(region);
      }
    }
    const std::byte* from = arena;
    const auto all_canaries = [&](const std::byte* to) {
      for (; from < to; ++from) {
        if (*from != kCanary) return complain("memory outside every region was written");
      }
    };
    for (const Region& region : regions) {  // drawn in the order of their addresses
      all_canaries(region.data);
      from = region.data + region.bytes;
    }
    all_canaries(arena + kArenaBytes);
  }

  Handle& handle_;
  RandomLoadOptions options_;
  std::mt19937_64 random_;
  std::vector<std::byte> model_;  // of the span
  std::vector<std::byte> heap_;
  Buffer buffer_;
  uint64_t heap_used_ = 0, buffer_used_ = 0;
  std::vector<Request> requests_;
  std::vector<std::string> complaints_;
};

RandomLoad::RandomLoad(Handle& handle, RandomLoadOptions options)
    : impl_(std::make_unique<Impl>(handle, std::move(options))) {}
RandomLoad::~RandomLoad() = default;
std::vector<std::string> RandomLoad::run_batch() { return impl_->run_batch(); }
const RandomLoadCounts& RandomLoad::counts() const noexcept { return impl_->counts_; }

}  // namespace headrace::test
