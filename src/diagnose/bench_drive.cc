// SPDX-License-Identifier: Apache-2.0
// Cuts a file into requests, keeps as many unfinished as the settings say, and syncs.
// One thread for each pass.
// Transfers under way refer to the pass's memory, so every way out waits for them.
#include "diagnose/bench_drive.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "diagnose/bench_progress.h"
#include "transfer/open_file.h"

namespace headrace::diagnose {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(20);

class Driver {
 public:
  Driver(const Pass& pass, const std::atomic<bool>& stop) : pass_(pass), stop_(stop) {
    const uint64_t batch_bytes = pass.block_bytes * pass.blocks_at_once;
    const bool by_block = pass.request == RequestSize::block;
    const bool batches = pass.order == RequestOrder::in_batches;
    request_bytes_ = by_block ? pass.block_bytes : batches ? batch_bytes : pass.bytes;
    requests_max_ = by_block ? pass.blocks_at_once : 1;
    under_way_.reserve(requests_max_);
  }

  Result<PassEnd> run() {
    Status status;
    for (uint64_t offset = 0; status && offset < pass_.bytes; offset += request_bytes_) {
      if (under_way_.size() == requests_max_) status = make_room();
      if (status) status = send(offset, std::min(request_bytes_, pass_.bytes - offset));
    }
    if (status) status = finish_all();
    if (!status) {
      give_up();
      return std::unexpected(std::move(status).error());
    }
    PassEnd end = {.transferred = PassEnd::Clock::now(), .durable = {}, .why = {}};
    if (pass_.durability == Durability::data) {
      const transfer::OpenFile& file = *pass_.file.internal();
      if (Status synced = file.system().datasync(file.descriptor(), file.path()); !synced)
        return std::unexpected(std::move(synced).error());
    }
    end.durable = PassEnd::Clock::now();
    if (const std::optional<Route> route = last_.route()) end.why = route->why;
    return end;
  }

 private:
  struct Request {
    Transfer transfer;
    uint64_t bytes = 0;
  };

  Status send(uint64_t offset, uint64_t bytes) {
    if (stop_.load(std::memory_order_relaxed)) return std::unexpected(interrupted());
    Result<Transfer> sent = pass_.direction == IoDirection::read ? read(offset, bytes) : write(offset, bytes);
    if (!sent) return std::unexpected(std::move(sent).error());
    under_way_.push_back({.transfer = *std::move(sent), .bytes = bytes});
    return {};
  }

  // Calls `add` with the pieces of memory that stand for a range of the file.
  template <typename Add>
  void pieces(uint64_t offset, uint64_t bytes, Add add) const {
    for (uint64_t done = 0; done < bytes;) {
      const uint64_t place = (offset + done) % pass_.memory.bytes;
      const uint64_t length = std::min(bytes - done, pass_.memory.bytes - place);
      add(pass_.memory.data + place, length);
      done += length;
    }
  }

  Result<Transfer> read(uint64_t offset, uint64_t bytes) {
    targets_.clear();
    pieces(offset, bytes, [this](std::byte* data, uint64_t length) { targets_.push_back({data, length, {}}); });
    return pass_.handle->read(pass_.file,
                              {.offset_bytes = offset, .targets = targets_, .copy = pass_.copy, .cache = pass_.cache});
  }
  Result<Transfer> write(uint64_t offset, uint64_t bytes) {
    sources_.clear();
    pieces(offset, bytes, [this](std::byte* data, uint64_t length) { sources_.push_back({data, length, {}}); });
    return pass_.handle->write(pass_.file, {.offset_bytes = offset, .sources = sources_, .copy = pass_.copy});
  }

  Status make_room() {
    if (pass_.order == RequestOrder::in_batches) return finish_all();
    // Mostly the oldest is done first. The look begins there and goes on from where the last one ended.
    while (!stop_.load(std::memory_order_relaxed)) {
      for (size_t i = 0; i < under_way_.size(); ++i) {
        Request& request = under_way_[(next_ + i) % under_way_.size()];
        if (!request.transfer.done()) continue;
        next_ = (next_ + i) % under_way_.size();
        return replaceable(request);
      }
      waiting_.clear();
      for (const Request& request : under_way_)
        waiting_.push_back(request.transfer);
      (void)wait(waiting_, WaitFor::any, kLookEvery);
    }
    return std::unexpected(interrupted());
  }

  // Takes the result of a request that is done, and makes its place the last one, which is free then.
  Status replaceable(Request& request) {
    if (Status checked = collect(request); !checked) return checked;
    request = std::move(under_way_.back());
    under_way_.pop_back();
    return {};
  }

  Status finish_all() {
    for (Request& request : under_way_) {
      while (!request.transfer.wait_for(kLookEvery)) {
        if (stop_.load(std::memory_order_relaxed)) return std::unexpected(interrupted());
      }
      if (Status checked = collect(request); !checked) return checked;
    }
    under_way_.clear();
    return {};
  }

  Status collect(const Request& request) {
    const Result<uint64_t> moved = request.transfer.result();
    if (!moved) return std::unexpected(moved.error());
    if (*moved != request.bytes) {
      return std::unexpected(Error{.code = ErrorCode::corrupt,
                                   .operation = "benchmark",
                                   .path = pass_.file.path(),
                                   .detail = fmt::format("a request of {} bytes moved {}", request.bytes, *moved)});
    }
    last_ = request.transfer;
    return {};
  }

  void give_up() {
    for (Request& request : under_way_)
      request.transfer.abort();
    for (const Request& request : under_way_)
      (void)request.transfer.result();
  }

  const Pass& pass_;
  const std::atomic<bool>& stop_;
  uint64_t request_bytes_ = 0;
  size_t requests_max_ = 1;
  std::vector<Request> under_way_;
  std::vector<Transfer> waiting_;
  std::vector<Region> targets_;
  std::vector<ConstRegion> sources_;
  size_t next_ = 0;
  Transfer last_;
};

}  // namespace

Result<PassEnd> drive(const Pass& pass, const std::atomic<bool>& stop) { return Driver(pass, stop).run(); }

}  // namespace headrace::diagnose
